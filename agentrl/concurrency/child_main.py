"""Main loop of a `child.ChildProcess`: reads questions as lines of JSON and answers each with one line."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from threading import Thread
from typing import Any

LIFELINE = "AGENTRL_LIFELINE"
"""Environment variable with the file descriptor of a pipe that closes when the parent ends."""
READY = "ready"
"""Id of the line that reports that the process is ready."""
Answer = Callable[[dict[str, Any]], dict[str, object]]  # Any: a question of the parent, as JSON


def serve(prepare: Callable[[], Answer]) -> None:
    """Call `prepare`, report readiness, then answer questions on the main thread until the input ends."""
    end_with_parent()
    ours, source, sink = os.getpid(), os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    # input and output of user code must not mix with questions and answers
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.register_at_fork(after_in_child=lambda: [os.dup2(nothing, pipe, inheritable=False) for pipe in (source, sink)])
    answer = prepare()
    _write(sink, READY, {})
    questions: SimpleQueue[str] = SimpleQueue()
    Thread(target=_receive, args=(os.fdopen(source, encoding="utf-8"), questions), daemon=True).start()
    while True:
        asked = json.loads(questions.get())
        answered = answer(asked["question"])
        if os.getpid() != ours:  # user code forked, and this is the forked process
            os._exit(0)
        _write(sink, asked["id"], answered)


def _write(sink: int, number: str, answer: dict[str, object]) -> None:
    line = memoryview(json.dumps({"id": number, "answer": answer}, default=str).encode() + b"\n")
    while line:
        line = line[os.write(sink, line) :]


def end_with_parent() -> None:
    """Make the operating system end this process group when the parent ends, even if a call holds the interpreter lock.

    `LIFELINE` names a pipe that only the parent can write to. When the parent ends, the pipe closes, and the system
    sends SIGIO, which ends the processes of the group.
    """
    lifeline = int(os.environ.pop(LIFELINE))
    os.set_inheritable(lifeline, False)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _receive(source: Iterable[str], questions: SimpleQueue[str]) -> None:
    for line in source:
        questions.put(line)
    os._exit(0)  # the parent has ended
