"""In a child process that reads turns: each turn is read in a fork, with limits on time and memory."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

DEADLINE_S = 3.0
"""Timeout in seconds. After a timeout, the turn counts as a malformed call."""
MAX_BYTES = 16 * 2**20
"""Maximum size of a result."""
MEMORY = 2**30
"""Memory in bytes that a fork may allocate. The limit is set on Linux only."""


def in_fork(read: Callable[[], object]) -> dict[str, object]:
    """Run `read` in a fork. Return its result as `found`, or a reason as `error`: it took too long, or ended."""
    reading, writing = os.pipe()
    if not (fork := os.fork()):
        _write_result(read, writing)
    os.close(writing)
    try:
        return _result(reading)
    finally:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)


def _write_result(read: Callable[[], object], pipe: int) -> NoReturn:
    try:
        _limit_memory()
        written = json.dumps(read()).encode()
        with os.fdopen(pipe, "wb") as file:
            file.write(written)
    finally:  # also after an error, so that the fork never continues as its parent
        os._exit(0)


def _limit_memory() -> None:
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _result(pipe: int) -> dict[str, object]:
    with os.fdopen(pipe, "rb") as file:
        if not select.select([file], [], [], DEADLINE_S)[0]:
            return {"error": f"reading it took more than {DEADLINE_S:g} seconds"}
        written = file.read(MAX_BYTES + 1)
    if len(written) > MAX_BYTES:
        return {"error": f"its parts have more than {MAX_BYTES // 2**20} MiB"}
    return {"found": json.loads(written)} if written else {"error": "reading it ended its process"}
