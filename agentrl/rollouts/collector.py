"""Groups of rollouts: every task n times, side by side, each with a seed of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from agentrl.engines.base import SamplingParams
from agentrl.errors import AgentRLError
from agentrl.rollouts.garbage import fewer_collections
from agentrl.seeds import derive_seed
from agentrl.task import Task
from agentrl.trajectory import Group, Rollout

if TYPE_CHECKING:
    from agentrl.rollouts.runner import RolloutRunner


class AllFailedError(AgentRLError):
    """Not one rollout of a step came to its end: something is wrong with the agent loop or around it."""


async def collect(
    runner: RolloutRunner,
    tasks: Sequence[Task],
    *,
    n: int,
    sampling: SamplingParams,
    seed: int,
    max_concurrent: int,
) -> list[Group]:
    """`n` rollouts of every task, in the order of the tasks, at most `max_concurrent` at a time.

    Rollout i of a task has the seed derive_seed(seed, task.uid, i), whatever runs beside it. When one rollout raises
    (the user's mistake, our bug) or the caller is cancelled, all others are cancelled and cleaned up first.

    Raises:
        AllFailedError: every rollout ended with an error; its text is the first one's.
    """
    attempts = [
        partial(runner.run, task, sampling, seed=derive_seed(seed, task.uid, number))
        for task in tasks
        for number in range(n)
    ]
    rollouts = await side_by_side(attempts, max_concurrent)
    groups = [Group(task, rollouts[place * n : (place + 1) * n]) for place, task in enumerate(tasks)]
    _refuse_all_failed(groups)
    return groups


async def side_by_side(attempts: Sequence[Callable[[], Awaitable[Rollout]]], max_concurrent: int) -> list[Rollout]:
    """What `attempts` give, in their order. Where one raises, all others are cancelled and cleaned up first."""
    slots = asyncio.Semaphore(max_concurrent)

    async def one(attempt: Callable[[], Awaitable[Rollout]]) -> Rollout:
        async with slots:
            return await attempt()

    try:
        with fewer_collections():
            async with asyncio.TaskGroup() as together:
                running = [together.create_task(one(attempt)) for attempt in attempts]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [each.result() for each in running]


def _refuse_all_failed(groups: Sequence[Group]) -> None:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if rollouts and all(rollout.failed for rollout in rollouts):
        raise AllFailedError(f"all {len(rollouts)} rollouts failed; the first: {rollouts[0].error}")
