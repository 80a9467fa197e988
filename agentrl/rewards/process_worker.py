"""The child process of `rewards.processes`: scores with whatever function it is asked for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from functools import cache
from typing import Any, cast

from agentrl.blame import told
from agentrl.errors import ConfigError, RewardError
from agentrl.offload.serving import serve
from agentrl.registry import load_object
from agentrl.rewards.calls import numbers_of
from agentrl.tools.base import InfraError

_load = cache(load_object)


def answer(question: dict[str, Any]) -> dict[str, object]:  # Any: JSON of `ScorePool.score`
    """The numbers that `target` gives for `arguments`, or what it raised."""
    try:
        returned = _load(question["target"])(**question["arguments"])
        if inspect.isawaitable(returned):
            returned = asyncio.run(_result(returned))
        numbers, dropped = numbers_of(returned)
    except (InfraError, ConfigError, RewardError) as error:
        return {"error": type(error).__name__, "text": str(error)}
    except BaseException as error:  # the function's failure, SystemExit too, is the parent's to report
        return {"error": "", "text": told(error)}
    return {"numbers": numbers, "dropped": dropped}


async def _result(running: object) -> object:
    return await cast("Awaitable[object]", running)


if __name__ == "__main__":
    serve(lambda: answer)
