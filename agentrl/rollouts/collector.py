"""Groups of rollouts: every task n times, side by side, each with a seed of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from agentrl.attempt import Group, Rollout
from agentrl.engines.base import SamplingParams
from agentrl.errors import AgentRLError
from agentrl.rollouts.garbage import fewer_collections
from agentrl.seeds import derive_seed
from agentrl.task import Task

if TYPE_CHECKING:
    from agentrl.rollouts.runner import RolloutRunner


class AllFailedError(AgentRLError):
    """Not one rollout of a step came to its end: something is wrong with the agent loop or around it."""


Attempt = Callable[[], Awaitable[Rollout]]


async def collect(
    runner: RolloutRunner,
    tasks: Sequence[Task],
    *,
    n: int,
    sampling: SamplingParams,
    seed: int,
    slots: asyncio.Semaphore,
) -> list[Group]:
    """`n` rollouts of every task, in the order of the tasks.

    When one rollout raises (the user's mistake, our bug) or the caller is cancelled, all others are cancelled and
    cleaned up first.

    Args:
        slots: one is held by each rollout under way.

    Raises:
        AllFailedError: every rollout ended with an error; its text is the first one's.
    """
    attempts = [attempts_at(task, 0, runner=runner, n=n, sampling=sampling, seed=seed) for task in tasks]
    rollouts = await side_by_side([*chain.from_iterable(attempts)], slots)
    groups = [Group(task, rollouts[place * n : (place + 1) * n]) for place, task in enumerate(tasks)]
    refuse_all_failed(groups)
    return groups


def attempts_at(
    task: Task, priority: int, *, runner: RolloutRunner, n: int, sampling: SamplingParams, seed: int
) -> list[Attempt]:
    """`n` rollouts of a task, to be begun. Rollout i has the seed derive_seed(seed, task.uid, i), whatever runs beside
    it."""
    seeds = [derive_seed(seed, task.uid, number) for number in range(n)]
    return [partial(runner.run, task, sampling, seed=each, priority=priority) for each in seeds]


async def side_by_side(attempts: Sequence[Attempt], slots: asyncio.Semaphore) -> list[Rollout]:
    """What `attempts` give, in their order. Where one raises, all others are cancelled and cleaned up first."""

    async def one(attempt: Attempt) -> Rollout:
        async with slots:
            return await attempt()

    try:
        with fewer_collections():
            async with asyncio.TaskGroup() as together:
                running = [together.create_task(one(attempt)) for attempt in attempts]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [each.result() for each in running]


def refuse_all_failed(groups: Sequence[Group]) -> None:
    """End a run whose step has not one good rollout.

    Raises:
        AllFailedError: every rollout ended with an error.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if rollouts and all(rollout.failed for rollout in rollouts):
        raise AllFailedError(f"all {len(rollouts)} rollouts failed; the first: {rollouts[0].error}")
