"""Worker groups: objects of one class on several Ray workers. One call runs a method on all of these objects."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import ray
from ray.exceptions import RayTaskError

from agentrl.cluster.actors import Actor, actor_of, raised_by
from agentrl.errors import AgentRLError


class WorkerError(AgentRLError):
    """A worker was lost, or a call was not done in time. The group ends all its workers before it raises this error."""


class WorkerGroup:
    """Objects of one class, each in a separate process on the connected Ray cluster.

    Use it with `async with`, or call `close` at the end.

    Args:
        kind: class of the objects; each worker creates one with `arguments`.
        size: number of workers.
        num_cpus, num_gpus: resources of each worker.
    """

    def __init__(self, kind: type, size: int, *arguments: object, num_cpus: float = 1, num_gpus: float = 0) -> None:
        options = {"num_cpus": num_cpus, "num_gpus": num_gpus}
        self._workers: list[Actor] = [actor_of(kind, *arguments, **options) for _ in range(size)]

    async def call(self, method: str, *arguments: object, timeout_s: float | None = None) -> list[Any]:
        """Call a method with the same arguments on all workers; return the results in the order of workers.

        Raises:
            WorkerError: a worker was lost, or not all workers were done within `timeout_s` seconds.
            Exception: the first error that the method raised on any worker; the group first ends all its workers.
        """
        return await self._each(method, [arguments] * len(self._workers), timeout_s)

    async def split(self, method: str, rows: Sequence[Any], *arguments: object, timeout_s: float | None = None) -> Any:
        """Call a method on each worker, with a part of `rows` and with `arguments`; return one list of all results.

        The parts are consecutive and differ in length by at most 1. `Any` stands for the types of rows and results.

        Raises:
            WorkerError, Exception: see `call`.
        """
        size = len(self._workers)
        ends = [len(rows) * index // size for index in range(size + 1)]
        parts = [(rows[start:end], *arguments) for start, end in pairwise(ends)]
        return [result for part in await self._each(method, parts, timeout_s) for result in part]

    def close(self) -> None:
        """End all workers. A second call does nothing."""
        while self._workers:
            ray.kill(self._workers.pop())

    async def __aenter__(self) -> WorkerGroup:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    async def _each(self, method: str, arguments: Sequence[tuple[object, ...]], timeout_s: float | None) -> list[Any]:
        calls = [getattr(each, method).remote(*own) for each, own in zip(self._workers, arguments, strict=True)]
        try:
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
                tasks = [group.create_task(_result(call)) for call in calls]
        except TimeoutError:
            self.close()
            raise WorkerError(f"`{method}` was not done after {timeout_s:g} s") from None
        except BaseExceptionGroup as errors:
            self.close()
            raise _readable(errors.exceptions[0], method) from None
        return [task.result() for task in tasks]


async def _result(call: Any) -> Any:  # Any: the result of any method
    return await call


def _readable(error: BaseException, method: str) -> BaseException:
    if isinstance(error, RayTaskError):
        return raised_by(error)
    return WorkerError(f"a worker was lost during `{method}`: {str(error).splitlines()[0]}")
