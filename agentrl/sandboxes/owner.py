"""Names the process that owns a sandbox, so that sandboxes of ended processes can be found."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NAME = re.compile(r"([0-9a-f]{32}x\d+)-(\d+)-(\d+)")


def own_name() -> str:
    """Return a name of this process that is never reused: `place`, process id and start time."""
    process = os.getpid()
    return f"{place()}-{process}-{_started(process)}"


def place() -> str:
    """Return a name for this boot and this process namespace. Process ids are unique within this combination."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", "")
    return f"{boot}x{Path('/proc/self/ns/pid').stat().st_ino}"


def has_ended(owner: str) -> bool:
    """Whether a process with this name ran here and has ended. False for processes of another `place`."""
    found = _NAME.fullmatch(owner)
    return found is not None and found[1] == place() and _started(int(found[2])) != int(found[3])


def _started(process: int) -> int | None:
    """Return when a process started, in clock ticks since the start of the machine; None if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
