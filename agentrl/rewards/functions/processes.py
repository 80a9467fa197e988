"""Score in child processes. If a process hangs, dies or exhausts memory, one score is lost and the run continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import JsonValue

from agentrl.concurrency import CircuitBreaker, Offload, UnavailableError
from agentrl.concurrency.child import import_path
from agentrl.concurrency.pool import ChildPool
from agentrl.errors import ConfigError, Kind, RewardError
from agentrl.rewards.base import NoVerdictError
from agentrl.rewards.functions.calls import RaisedError, ScoreFunction, errors_with_place
from agentrl.rewards.reward_view import ENVIRONMENT
from agentrl.tools.base import InfraError

_ERRORS: Mapping[str, Callable[[str], Exception]] = {
    "ConfigError": ConfigError.keyless,
    **{kind.__name__: kind for kind in (InfraError, RewardError, NoVerdictError)},
}
"""Error classes that a child process reports by name. Any other error was raised by the user's function itself."""


class ScorePool:
    """Pool of at most `num_workers` processes, started on demand and reused. Further calls wait for a free process.

    A process can run any function, given the import path of the function. It caches the functions that it has loaded.
    """

    def __init__(self, num_workers: int) -> None:
        self._offload = Offload()
        breaker = CircuitBreaker("the rewards in processes")
        self._pool = ChildPool(self._offload, breaker, num_workers, "agentrl.rewards.functions.process_worker")

    async def score(
        self, target: str, arguments: Mapping[str, object], timeout_s: float
    ) -> tuple[dict[str, float], list[str]]:
        """Call `target`; return (numbers by name, names of entries that are not finite numbers).

        Waiting for a process does not count towards `timeout_s`.

        Raises:
            InfraError: the process ended, or the function raised `InfraError`.
            RewardError: the function raised, or returned no score.
            OverdueError: the call took longer than `timeout_s`; its process was killed.
            TypeError: an argument is not JSON.
        """
        try:
            return _read(await self._pool.ask({"target": target, "arguments": arguments}, timeout_s))
        except UnavailableError as error:
            raise InfraError(str(error)) from None

    def close(self) -> None:
        """End the processes."""
        self._pool.close()
        self._offload.close()


class ProcessReward:
    """Like `FunctionReward`, but runs in the processes of `pool`; `extra_info` must contain only JSON values.

    Raises:
        ConfigError: the function requires an argument that is not passed, does not accept one of `kwargs`, or is not
            importable by name.
    """

    def __init__(
        self,
        function: Callable[..., object],
        kwargs: Mapping[str, JsonValue],
        timeout_s: float,
        name: str,
        pool: ScorePool,
    ) -> None:
        self._score, self._pool, self._timeout_s = ScoreFunction(function, kwargs, name), pool, timeout_s
        self._target = _target(self._score)

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`; a process that dies or hangs raises `InfraError` for this rollout only."""
        # the environment object cannot be sent to another process
        plain = {key: value for key, value in extra_info.items() if key != ENVIRONMENT}
        arguments = self._score.arguments(data_source, solution_str, ground_truth, plain)
        where = self._score.where(data_source, extra_info)
        with errors_with_place(where, self._timeout_s, self._score.place):
            numbers, dropped = await self._pool.score(self._target, arguments, self._timeout_s)
        self._score.warn_dropped(dropped)
        return numbers

    def close(self) -> None:
        """End the processes."""
        self._pool.close()


def _target(score: ScoreFunction) -> str:
    name = getattr(score.function, "__qualname__", "")
    if not name or not name.isidentifier():  # a lambda, an object, a nested function
        raise ConfigError.at(
            "reward.reward_manager.name",
            Kind.NOT_SUPPORTED,
            f"reward '{score.name}' cannot score in other processes (reward_manager.name=prime): it must be a function"
            f" at the top of a file or module{score.place}",
        )
    return import_path(score.function)


def _read(reply: dict[str, object]) -> tuple[dict[str, float], list[str]]:
    if "error" in reply:
        raise _ERRORS.get(str(reply["error"]), RaisedError)(str(reply["text"]))
    numbers, dropped = reply["numbers"], reply["dropped"]
    assert isinstance(numbers, dict)  # process_worker guarantees these types
    assert isinstance(dropped, list)
    return numbers, dropped
