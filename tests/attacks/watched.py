"""Records the side effects of code: files it writes, processes it starts, addresses it contacts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.concurrency import watchdog_process

_WRITES = 0o3  # O_WRONLY | O_RDWR
_FILES = ("write", "os.mkdir")
_watching: list[list[tuple[str, str]]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:  # Any: the arguments of each audit event
    # our own watchdog process
    if not _watching or (event == "subprocess.Popen" and watchdog_process.__file__ in (arguments[1] or ())):
        return
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES:
        _watching[-1].append(("write", str(arguments[0])))
    elif event in ("socket.connect", "subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.mkdir"):
        _watching[-1].append((event, str(arguments[:2])))


sys.addaudithook(_hook)


@contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    """Collects (event, argument) of every side effect; the caller names the folders where writing is allowed."""
    seen: list[tuple[str, str]] = []
    bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # an import would write into the folders of libraries
    _watching.append(seen)
    try:
        yield seen
    finally:
        _watching.pop()
        sys.dont_write_bytecode = bytecode


def suspicious(seen: list[tuple[str, str]], *allowed: Path) -> list[tuple[str, str]]:
    """The events that touch neither a file in one of those folders nor the null device."""
    fine = (*map(str, allowed), "/dev/null")
    return [(event, what) for event, what in seen if event not in _FILES or not any(place in what for place in fine)]
