"""Groups of rollouts: every task n times, side by side, each with a seed of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product
from typing import TYPE_CHECKING

from agentrl.attempt import BASELINE, Group, Rollout
from agentrl.engines.base import SamplingParams
from agentrl.errors import AgentRLError, RewardError
from agentrl.rollouts.garbage import fewer_collections
from agentrl.rollouts.siblings import Siblings
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
    attempts = partial(attempts_at, runner=runner, n=n, sampling=sampling, seed=seed)
    groups = await roll_out(attempts, tasks, n=n, slots=slots)
    refuse_all_failed(groups)
    return groups


async def roll_out(
    attempts: Callable[[Task, int], Sequence[Attempt]], tasks: Sequence[Task], *, n: int, slots: asyncio.Semaphore
) -> list[Group]:
    """`collect` of those attempts, also where all of them fail."""
    of_tasks = [attempts(task, 0) for task in tasks]
    rollouts = iter(await side_by_side([*chain.from_iterable(of_tasks)], slots))
    return [group_of(task, [*islice(rollouts, len(each))], n) for task, each in zip(tasks, of_tasks, strict=True)]


def attempts_at(
    task: Task,
    priority: int,
    *,
    runner: RolloutRunner,
    n: int,
    sampling: SamplingParams,
    seed: int,
    greedy_baseline: bool = False,
) -> list[Attempt]:
    """`n` rollouts of a task, to be begun. Rollout i has the seed derive_seed(seed, task.uid, i), whatever runs beside
    it.

    Args:
        greedy_baseline: one more, sampled greedily, comes after them (ReMax, Li et al. 2023, arXiv:2310.10505).
    """
    seeds, siblings = [derive_seed(seed, task.uid, number) for number in range(n)], Siblings(n, runner.guards)
    begun = [partial(runner.run, task, sampling, seed=each, priority=priority) for each in seeds]
    attempts: list[Attempt] = [partial(siblings.await_one, each) for each in begun]
    if greedy_baseline:
        greedy = replace(sampling, temperature=0.0, top_p=1.0, top_k=-1, min_p=0.0)
        attempts.append(partial(runner.run, task, greedy, seed=derive_seed(seed, task.uid, n), priority=priority))
    return attempts


def group_of(task: Task, rollouts: Sequence[Rollout], n: int) -> Group:
    """The group of the first `n`; the score of one more, the greedy one, is the reward `baseline` of each of them.

    Where the greedy one failed, or has no score, there is no baseline.

    Raises:
        RewardError: the reward function gives a `baseline` of its own.
    """
    siblings = list(rollouts[:n])
    baselines = [each.reward for each in rollouts[n:] if not each.failed and "score" in each.rewards]
    for baseline, sibling in product(baselines, [each for each in siblings if not each.failed]):
        if BASELINE in sibling.rewards:
            raise RewardError(
                f"row {task.index} of '{task.data_source}': the reward function gives a reward named '{BASELINE}',"
                " which is the greedy rollout's here: give it another name"
            )
        sibling.rewards[BASELINE] = baseline
    return Group(task, siblings)


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
