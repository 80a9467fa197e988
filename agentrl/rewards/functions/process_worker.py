"""Child process of `rewards.functions.processes`: each request names the function that computes the score."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from functools import cache
from typing import Any, cast

from agentrl.concurrency.child_main import serve
from agentrl.errors import ConfigError, RewardError
from agentrl.registry import load_object
from agentrl.rewards.functions.calls import numbers_of
from agentrl.tools.base import InfraError
from agentrl.utils.user_code import format_error

_load = cache(load_object)


def answer(question: dict[str, Any]) -> dict[str, object]:  # Any: JSON of `ScorePool.score`
    """Return the numbers that `target(**arguments)` returned, or the error that it raised."""
    try:
        returned = _load(question["target"])(**question["arguments"])
        if inspect.isawaitable(returned):
            returned = asyncio.run(_result(returned))
        numbers, dropped = numbers_of(returned)
    except (InfraError, ConfigError, RewardError) as error:
        return {"error": type(error).__name__, "text": str(error)}
    except BaseException as error:  # also SystemExit: the parent process reports the error
        return {"error": "", "text": format_error(error)}
    return {"numbers": numbers, "dropped": dropped}


async def _result(running: object) -> object:
    return await cast("Awaitable[object]", running)


if __name__ == "__main__":
    serve(lambda: answer)
