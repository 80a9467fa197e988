"""Check a sandbox's isolation with code that runs in the sandbox."""

from __future__ import annotations

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import Sandbox

_CHECK_S = 30.0
_BEFORE = r"""
import os, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
def fails(action):
    try:
        action()
    except OSError:
        return True
    return False
checks = {
    "no capabilities": int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapBnd"], 16) == 0,
    "no new privileges": int(status["NoNewPrivs"]) == 1,
    "processes of this machine are hidden": len([n for n in os.listdir("/proc") if n.isdigit()]) < 6,
}
def no_network():
    return fails(lambda: socket.create_connection(("192.0.2.1", 9), 1))
"""
_READ_ONLY = """
writes = [lambda: open("/usr/probe", "w"), lambda: open("/probe", "w")]
checks["the system cannot be written"] = all(map(fails, writes))
"""
_AFTER = 'print("\\n".join(name for name, holds in checks.items() if not holds))'


async def check_isolation(sandbox: Sandbox, code: str, kind: str, *, read_only: bool = True) -> None:
    """Check that a sandbox has the isolation that all sandboxes on this machine need, and the properties in `code`.

    Args:
        code: adds entries to `checks`: property -> whether the sandbox has it. May call `fails` and `no_network`.
        kind: kind of the sandbox, for the message.
        read_only: whether the system folders must be read-only.

    Raises:
        ConfigError: properties are missing; the message lists them.
    """
    pieces = _BEFORE, _READ_ONLY if read_only else "", code, _AFTER
    result = await sandbox.run_python("\n".join(pieces), _CHECK_S)
    missing = [line for line in result.output.split("\n") if line.strip()]
    if result.error or result.timed_out:
        missing.append(f"the check itself failed: {result.error[-300:] or f'no answer in {_CHECK_S:g} seconds'}")
    if missing:
        raise ConfigError.keyless(f"{kind} sandboxes are not isolated on this machine. Missing: {'; '.join(missing)}")
