"""Code that checks, in a running sandbox, that this machine isolates what it should."""

from __future__ import annotations

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
libc = ctypes.CDLL(None, use_errno=True)
checks.update({
    "the network is unreachable": no_network(),
    "system calls are filtered": int(status["Seccomp"]) == 2 and libc.ptrace(0, 0, 0, 0) == -1,
    "the number of processes is limited": fails(forks),
    "files are limited": fails(lambda: open("/work/probe", "wb").truncate(FILE + 1)),
    "memory is limited": resource.getrlimit(resource.RLIMIT_AS)[1] == MEMORY,
})
"""


def probe(settings: LocalSandbox) -> str:
    """Return the code for `check_isolation`."""
    limits = settings.limits()
    values = limits["RLIMIT_NPROC"], limits["RLIMIT_FSIZE"], limits["RLIMIT_AS"]
    return f"LIMIT, FILE, MEMORY = {values}\n{_PROBE}"
