"""Checks, in a running sandbox, that this machine isolates what it should."""

from __future__ import annotations

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import Sandbox
from agentrl.sandboxes.local.settings import LocalSandbox

_PROBE = r"""
import ctypes, os, resource, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
def fails(action):
    try:
        action()
    except OSError:
        return True
    return False
def forks():
    children = []
    try:
        for _ in range(LIMIT + 1):
            child = os.fork()
            if child == 0:
                import time
                time.sleep(60)
                os._exit(0)
            children.append(child)
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
libc = ctypes.CDLL(None, use_errno=True)
checks = {
    "the network is unreachable": fails(lambda: socket.create_connection(("192.0.2.1", 9), 1)),
    "no capabilities": int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapBnd"], 16) == 0,
    "system calls are filtered": int(status["Seccomp"]) == 2 and libc.ptrace(0, 0, 0, 0) == -1,
    "no new privileges": int(status["NoNewPrivs"]) == 1,
    "processes of this machine are hidden": len([n for n in os.listdir("/proc") if n.isdigit()]) < 6,
    "the system cannot be written": fails(lambda: open("/usr/probe", "w")) and fails(lambda: open("/probe", "w")),
    "the number of processes is limited": fails(forks),
    "files are limited": fails(lambda: open("/work/probe", "wb").truncate(FILE + 1)),
    "memory is limited": resource.getrlimit(resource.RLIMIT_AS)[1] == MEMORY,
}
print("\n".join(name for name, holds in checks.items() if not holds))
"""


async def check_isolation(sandbox: Sandbox, settings: LocalSandbox) -> None:
    """Check what the sandbox isolates.

    Raises:
        ConfigError: names what this machine does not give.
    """
    limits = settings.limits()
    code = f"LIMIT, FILE, MEMORY = {limits['RLIMIT_NPROC']}, {limits['RLIMIT_FSIZE']}, {limits['RLIMIT_AS']}\n{_PROBE}"
    result = await sandbox.run_python(code, 30.0)
    missing = [*result.output.split("\n")] if result.output.strip() else []
    if result.error or result.timed_out:
        missing.append(f"the check itself failed: {result.error[-300:] or 'no answer in 30 seconds'}")
    if missing:
        listed = "; ".join(line for line in missing if line)
        raise ConfigError.keyless(f"local sandboxes do not hold on this machine. Not given: {listed}")
