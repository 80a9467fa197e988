"""The inside of an `offload.child.ChildProcess`: one line of JSON in, one line out."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from threading import Thread
from typing import Any

LIFELINE = "AGENTRL_LIFELINE"
"""Environment variable: the file descriptor of a pipe that ends with the parent."""
Answer = Callable[[dict[str, Any]], dict[str, object]]  # Any: JSON, which module and parent agree on


def serve(prepare: Callable[[], Answer]) -> None:
    """Answer questions on the main thread until the input ends; `prepare` runs first, before the process is ready."""
    end_with_parent()
    source, sink = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    # what user code reads and prints must not mix with questions and answers
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    answer = prepare()
    questions: SimpleQueue[str] = SimpleQueue()
    Thread(target=_receive, args=(source, questions), daemon=True).start()
    print(json.dumps({"ready": True}), file=sink, flush=True)
    while True:
        print(json.dumps(answer(json.loads(questions.get())), default=str), file=sink, flush=True)


def end_with_parent() -> None:
    """Let the system end this process when its parent is gone, also while something holds the interpreter.

    `LIFELINE` names a pipe that only the parent could write to: its end is the signal SIGIO.
    """
    lifeline = int(os.environ.pop(LIFELINE))
    os.set_inheritable(lifeline, False)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _receive(source: Iterable[str], questions: SimpleQueue[str]) -> None:
    for line in source:
        questions.put(line)
    os._exit(0)  # whoever asked is gone, whatever is being done
