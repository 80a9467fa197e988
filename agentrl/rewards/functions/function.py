"""Turn a reward function into a `Reward`: call it outside the event loop with a timeout, and check the result."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import cast

from pydantic import JsonValue

from agentrl.concurrency import CircuitBreaker, Offload, Work
from agentrl.rewards.functions.calls import ScoreFunction, errors_with_place


class OffLoop:
    """Calls a user's function, sync or async, outside the event loop and with a timeout.

    Raises, when called:
        OverdueError: the call timed out.
        UnavailableError: too many earlier calls still hang.
    """

    def __init__(self, function: Callable[..., object], timeout_s: float, name: str) -> None:
        self._function, self._timeout_s = function, timeout_s
        self._offload = Offload()
        self._breaker = CircuitBreaker(f"reward '{name}'")

    async def __call__(self, **arguments: object) -> object:
        """Return the function's result."""
        call = partial(self._function, **arguments)
        if inspect.iscoroutinefunction(self._function):
            work = cast("Work[object]", call)
            return await self._offload.run(work, self._timeout_s, self._breaker)
        returned = await self._offload.run_function(call, self._timeout_s, self._breaker)
        if inspect.isawaitable(returned):  # from an object with an async __call__, or a wrapper around one
            return await self._offload.run(partial(_result, returned), self._timeout_s, self._breaker)
        return returned

    def close(self) -> None:
        """Stop the threads. A thread that hangs in the function is not waited for."""
        self._offload.close()


class FunctionReward:
    """Calls `function(data_source=, solution_str=, ground_truth=, extra_info=, **kwargs)`.

    Each of the first four arguments is passed only if the function accepts it.

    Raises:
        ConfigError: the function requires an argument that is not passed, or does not accept one of `kwargs`.
    """

    def __init__(
        self, function: Callable[..., object], kwargs: Mapping[str, JsonValue], timeout_s: float, name: str
    ) -> None:
        self._score = ScoreFunction(function, kwargs, name)
        self._call = OffLoop(function, timeout_s, name)
        self._timeout_s = timeout_s

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """Return the rewards by name; see `rewards.base.Reward`.

        Raises:
            RewardError: the function raised, or returned no finite number.
            InfraError: the call timed out or raised `InfraError`; the rollout has no score and the run continues.
        """
        with errors_with_place(self._score.where(data_source, extra_info), self._timeout_s, self._score.place):
            arguments = self._score.arguments(data_source, solution_str, ground_truth, dict(extra_info))
            return self._score.read(await self._call(**arguments))

    def close(self) -> None:
        """Stop the threads. A thread that hangs in the function is not waited for."""
        self._call.close()


async def _result(running: Awaitable[object]) -> object:
    return await running
