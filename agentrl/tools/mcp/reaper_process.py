"""Helper process that kills MCP servers when the run ends, even after SIGKILL. It uses only the standard library.

`python -I -S reaper_process.py MARK`: standard input has one line for each process group that starts (`+ID`) or has
ended (`-ID`). When the input ends, all groups are killed. Then all processes with the environment variable
`AGENTRL_MCP=MARK` are killed, because a process can leave its group.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

VARIABLE = "AGENTRL_MCP"
_MAX_ROUNDS = 20
"""Maximum number of passes over all processes, because a process may fork faster than its children are killed."""


def main(mark: str) -> None:
    """Wait for the end of the input, then kill the remaining processes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line))
        else:
            groups.discard(-int(line))
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    entry = f"{VARIABLE}={mark}".encode()
    for _ in range(_MAX_ROUNDS):
        pids = [*_processes_with(entry)]
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            return


def _processes_with(entry: bytes) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


if __name__ == "__main__":
    main(sys.argv[1])
