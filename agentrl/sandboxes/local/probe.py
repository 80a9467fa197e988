"""Code that runs in a sandbox and checks that this machine isolates the sandbox as required."""

from __future__ import annotations

from agentrl.sandboxes.base import SandboxSetup
from agentrl.sandboxes.local.bubblewrap import writable_folders
from agentrl.sandboxes.local.settings import LocalSandbox

_PROBE = r"""
import ctypes, resource, time
def forks():
    children = []
    try:
        for _ in range(LIMIT + 1):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
def size(folder):
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize
libc = ctypes.CDLL(None, use_errno=True)
checks.update({
    "the network is unreachable": no_network(),
    "system calls are filtered": int(status["Seccomp"]) == 2 and libc.ptrace(0, 0, 0, 0) == -1,
    "the number of processes is limited": fails(forks),
    "files are limited": fails(lambda: open("/work/probe", "wb").truncate(FILE + 1)),
    "written files are limited": all(size(folder) <= DISK for folder in FOLDERS),
    "memory is limited": resource.getrlimit(resource.RLIMIT_AS)[1] == MEMORY,
})
"""


def probe(settings: LocalSandbox) -> str:
    """Return the code for `check_isolation`."""
    limits = settings.limits()
    folders = writable_folders(settings, SandboxSetup())
    values = limits["RLIMIT_NPROC"], limits["RLIMIT_FSIZE"], limits["RLIMIT_AS"], settings.disk_mb * 2**20, folders
    return f"LIMIT, FILE, MEMORY, DISK, FOLDERS = {values}\n{_PROBE}"
