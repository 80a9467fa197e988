"""The child process of a tool with `isolation: process`: one line of JSON in, one line out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial

from agentrl.registry import load_object
from agentrl.tools.answer import read_answer
from agentrl.tools.base import InfraError, ToolError
from agentrl.tools.function import as_tool


def serve(target: str) -> None:
    """Answer calls of the function `target` names until the input ends."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the tool prints must not mix with the replies
    tool = as_tool(load_object(target))
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        print(
            json.dumps(_answer(partial(tool.function, **tool.bind(json.loads(line)))), default=str),
            file=replies,
            flush=True,
        )


def _answer(function: Callable[[], object]) -> dict[str, object]:
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
