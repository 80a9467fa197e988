"""Child process of a tool with `isolation: process`: reads one line of JSON per call and writes one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from agentrl.concurrency.child_main import Answer, serve
from agentrl.registry import load_object
from agentrl.tools.base import InfraError, ToolError
from agentrl.tools.function import as_tool
from agentrl.tools.result import read_answer


def answers_of(target: str) -> Answer:
    """Return a callable that runs the function named by `target`."""
    tool = as_tool(load_object(target))
    return lambda arguments: _reply(partial(tool.function, **tool.bind(arguments)))


def _reply(function: Callable[[], object]) -> dict[str, object]:
    try:
        answer = read_answer(function())
        if answer.images:
            raise ToolError("a tool with isolation: process answers with text only")
    except (ToolError, InfraError) as error:
        return {"error": type(error).__name__, "text": str(error)}
    except BaseException as error:  # the parent reports the tool's failure, also for SystemExit
        return {"error": "", "text": f"{type(error).__name__}: {error}"}
    return {"text": answer.text, "reward": answer.reward, "metrics": answer.metrics}


if __name__ == "__main__":
    serve(partial(answers_of, sys.argv[1]))
