"""Scoring in processes of their own: what hangs, dies or eats all memory there costs one score and not the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pydantic import JsonValue

from agentrl.errors import ConfigError, RewardError
from agentrl.offload import Lane, Offload
from agentrl.offload.child import ChildProcess, EndedError, import_path
from agentrl.rewards.base import NoVerdictError
from agentrl.rewards.calls import RaisedError, ScoreFunction, blamed
from agentrl.tools.base import InfraError

_START_TIMEOUT_S = 60.0
_KINDS = {kind.__name__: kind for kind in (InfraError, ConfigError, RewardError, NoVerdictError)}
"""Failures that a process tells apart; all else is what the function raised."""


class ScorePool:
    """At most `num_workers` processes, started when they are needed and kept; further calls wait for one.

    A process may score with any function, by its import path: it keeps those that it was asked for.
    """

    def __init__(self, num_workers: int) -> None:
        self._slots = asyncio.Semaphore(num_workers)
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()
        self._offload = Offload()
        self._lane = Lane("the processes of rewards")

    async def score(
        self, target: str, arguments: Mapping[str, object], timeout_s: float
    ) -> tuple[dict[str, float], list[str]]:
        """(numbers by name, entries that are none) of a call of `target`; waiting for a process takes no time of it.

        Raises:
            InfraError: the process ended, or the function said so itself.
            RewardError: the function raised, or gave no score.
            OverdueError: it took longer than `timeout_s`; its process was killed.
            TypeError: an argument is no JSON.
        """
        async with self._slots:
            worker = await self._take()
            question = {"target": target, "arguments": arguments}
            job = lambda: self._ask(worker, question)  # noqa: E731
            reply = await self._offload.run_function(job, timeout_s, self._lane, stop=worker.kill)
        return _read(reply)

    def close(self) -> None:
        """End the processes."""
        for worker in [*self._all]:
            worker.close()
        self._all.clear()
        self._idle.clear()
        self._offload.close()

    async def _take(self) -> ChildProcess:
        while self._idle:
            if (worker := self._idle.pop()).alive:
                return worker
            self._drop(worker)
        worker = ChildProcess("agentrl.rewards.process_worker")
        self._all.add(worker)
        try:
            await self._offload.run_function(worker.start, _START_TIMEOUT_S, self._lane, stop=worker.kill)
        except EndedError as error:
            raise InfraError(f"its process {error}") from None
        return worker

    def _ask(self, worker: ChildProcess, question: Mapping[str, object]) -> dict[str, object]:
        """On a thread: the answer; the process is kept for the next if it lives."""
        try:
            return worker.ask(question)
        except EndedError as error:
            raise InfraError(f"its process {error}") from None
        finally:
            if worker.alive:
                self._idle.append(worker)
            else:
                self._drop(worker)

    def _drop(self, worker: ChildProcess) -> None:
        self._all.discard(worker)
        worker.close()


class ProcessReward:
    """As `FunctionReward`, in the processes of `pool`: what `extra_info` holds must be JSON.

    Raises:
        ConfigError: the function asks for something else, does not take one of `kwargs`, or has no name by which
            another process could import it.
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
        """See `rewards.base.Reward`; a process that dies or hangs is an `InfraError` of this rollout alone."""
        arguments = self._score.arguments(data_source, solution_str, ground_truth, dict(extra_info))
        where = self._score.where(data_source, extra_info)
        with blamed(where, self._timeout_s, self._score.place):
            numbers, dropped = await self._pool.score(self._target, arguments, self._timeout_s)
        self._score.tell_dropped(dropped)
        return numbers

    def close(self) -> None:
        """End the processes."""
        self._pool.close()


def _target(score: ScoreFunction) -> str:
    name = getattr(score.function, "__qualname__", "")
    if not name or not name.isidentifier():  # a lambda, an object, a function inside another
        raise ConfigError(
            f"reward '{score.name}' cannot score in other processes (reward_manager.name=prime): it must be a function"
            f" at the top of a file or module{score.place}"
        )
    return import_path(score.function)


def _read(reply: dict[str, object]) -> tuple[dict[str, float], list[str]]:
    if "error" in reply:
        raise _KINDS.get(str(reply["error"]), RaisedError)(str(reply["text"]))
    numbers, dropped = reply["numbers"], reply["dropped"]
    assert isinstance(numbers, dict)  # as process_worker writes them
    assert isinstance(dropped, list)
    return numbers, dropped
