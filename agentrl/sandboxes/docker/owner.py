"""Names the process that owns a container, so that containers of ended processes can be found."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

LABEL = "agentrl.owner"
_OWNED = re.compile(rf"^(\w+)\b.*\b{re.escape(LABEL)}[=:](\w+)-(\d+)-(\d+)")


@cache
def own_name() -> str:
    """Return the name of this process. It is never given to another one: place, process number, start time."""
    process = os.getpid()
    return f"{_place()}-{process}-{_started(process)}"


@cache
def _place() -> str:
    """Name the start of this machine and the process namespace, in which process numbers are unique."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    return f"{boot}x{Path('/proc/self/ns/pid').stat().st_ino}"


def _started(process: int) -> int | None:
    """Return when a process started, in ticks since the start of the machine; None if it has ended."""
    try:
        after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if after_name[0] in "ZX" else int(after_name[19])


def orphans(lines: Iterable[str]) -> Iterator[str]:
    """Yield the containers of ended processes of this machine.

    Args:
        lines: identifier and labels of a container each, as `docker ps` prints them.
    """
    for line in lines:
        found = _OWNED.match(line)
        if found and found[2] == _place() and _started(int(found[3])) != int(found[4]):
            yield found[1]
