"""Child processes that parse turns. Each turn is parsed in a fork, which is killed after a timeout."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from agentrl.concurrency.child import ChildProcess, EndedError

DEADLINE_S = 3.0
"""Timeout in seconds for parsing one turn. After a timeout, the turn counts as a malformed call."""


def ask(module: str, question: Mapping[str, object]) -> dict[str, Any]:  # Any: JSON of the module
    """Return the answer of the child process `python -m module`, which runs until this process ends.

    Raises:
        EndedError: the child process ended. The next call of `ask` starts a new process.
    """
    try:
        return _process(module).ask(question)
    except EndedError:
        _process.cache_clear()
        raise


@cache
def _process(module: str) -> ChildProcess:
    process = ChildProcess(module)
    atexit.register(process.close)
    process.start()
    return process


def in_fork(read: Callable[[], object], deadline_s: float = DEADLINE_S) -> dict[str, object]:
    """Call `read` in a fork of this process; return {"result": the value of `read`} or {"mistake": text}."""
    reading, writing = os.pipe()
    if not (fork := os.fork()):
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as pipe:
                pipe.write(json.dumps(read()))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        return _answer(reading, deadline_s)
    finally:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)


def _answer(pipe: int, deadline_s: float) -> dict[str, object]:
    with os.fdopen(pipe, "rb") as file:
        if not select.select([file], [], [], deadline_s)[0]:
            return {"mistake": f"reading it took more than {deadline_s:g} seconds"}
        written = file.read()
    return {"result": json.loads(written)} if written else {"mistake": "the process that read it ended"}
