"""The child process of a tool with `isolation: process`: one line of JSON in, one line out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from threading import Thread

from agentrl.registry import load_object
from agentrl.tools.answer import read_answer
from agentrl.tools.base import InfraError, ToolError
from agentrl.tools.function import as_tool


def serve(target: str) -> None:
    """Answer calls of the function `target` names until the input ends."""
    source, sink = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    # what the tool reads and prints must not mix with calls and replies
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    tool = as_tool(load_object(target))
    calls: SimpleQueue[str] = SimpleQueue()
    Thread(target=_receive, args=(source, calls), daemon=True).start()
    print(json.dumps({"ready": True}), file=sink, flush=True)
    while True:
        arguments = tool.bind(json.loads(calls.get()))
        print(json.dumps(_reply(partial(tool.function, **arguments)), default=str), file=sink, flush=True)


def _receive(source: Iterable[str], calls: SimpleQueue[str]) -> None:
    for line in source:
        calls.put(line)
    os._exit(0)  # whoever called is gone, whatever the tool is doing


def _reply(function: Callable[[], object]) -> dict[str, object]:
    try:
        answer = read_answer(function())
        if answer.response is not None:
            raise ToolError("a tool with isolation: process answers with text only")
    except (ToolError, InfraError) as error:
        return {"error": type(error).__name__, "text": str(error)}
    except BaseException as error:  # the tool's failure, SystemExit too, is the parent's to report
        return {"error": "", "text": f"{type(error).__name__}: {error}"}
    return {"text": answer.text, "reward": answer.reward, "metrics": answer.metrics}


if __name__ == "__main__":
    serve(sys.argv[1])
