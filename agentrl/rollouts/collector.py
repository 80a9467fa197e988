"""Run groups of rollouts: n rollouts of every task, concurrently, each with its own seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product
from typing import TYPE_CHECKING

from agentrl.config.reward_sources import GuardsConfig
from agentrl.engines.base import SamplingParams
from agentrl.errors import AgentRLError, RewardError
from agentrl.rewards.guards import length_outliers
from agentrl.rollouts.gc_tuning import fewer_collections
from agentrl.types.rollout import BASELINE, GUARD, Group, Rollout
from agentrl.types.task import Task
from agentrl.utils.seeds import derive_seed

if TYPE_CHECKING:
    from agentrl.rollouts.runner import RolloutRunner


class AllFailedError(AgentRLError):
    """Raised if all rollouts of a step failed. The usual cause is the agent loop or its environment."""


Attempt = Callable[[], Awaitable[Rollout]]
"""Function that runs one rollout. It is prepared first and called later."""


async def collect(
    runner: RolloutRunner,
    tasks: Sequence[Task],
    *,
    n: int,
    sampling: SamplingParams,
    seed: int,
    slots: asyncio.Semaphore,
) -> list[Group]:
    """Run `n` rollouts of every task; groups are in the order of the tasks.

    If a rollout raises an exception (a user mistake or a bug), all other rollouts are cancelled and cleaned up. Then
    the exception is raised. If the caller is cancelled, all rollouts are cancelled and cleaned up.

    Args:
        slots: limits concurrent rollouts; each running rollout holds one slot.

    Raises:
        AllFailedError: every rollout ended with an error; the message contains the first error.
    """
    attempts = partial(attempts_at, runner=runner, n=n, sampling=sampling, seed=seed)
    groups = await roll_out(attempts, tasks, n=n, slots=slots)
    refuse_all_failed(groups)
    return groups


async def roll_out(
    attempts: Callable[[Task, int], Sequence[Attempt]], tasks: Sequence[Task], *, n: int, slots: asyncio.Semaphore
) -> list[Group]:
    """Like `collect`, but `attempts` prepares the rollouts of each task, and it is no error if all rollouts fail."""
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
    """Prepare `n` rollouts of a task, without starting them.

    Rollout i has the seed derive_seed(seed, task.uid, i), which does not depend on other rollouts.

    Args:
        greedy_baseline: add one more rollout, sampled greedily (ReMax, Li et al. 2023, arXiv:2310.10505).
    """
    seeds, length_guard = [derive_seed(seed, task.uid, number) for number in range(n)], LengthGuard(n, runner.guards)
    started = [partial(runner.run, task, sampling, seed=each, priority=priority) for each in seeds]
    attempts: list[Attempt] = [partial(length_guard.await_one, each) for each in started]
    if greedy_baseline:
        greedy = replace(sampling, temperature=0.0, top_p=1.0, top_k=-1, min_p=0.0)
        attempts.append(partial(runner.run, task, greedy, seed=derive_seed(seed, task.uid, n), priority=priority))
    return attempts


def group_of(task: Task, rollouts: Sequence[Rollout], n: int) -> Group:
    """Make a group of the first `n` rollouts.

    If a greedy rollout follows, its score becomes the reward part `baseline` of the first `n` rollouts. No baseline is
    added if the greedy rollout failed or has no score.

    Raises:
        RewardError: the reward function itself returns a reward part `baseline`.
    """
    members = list(rollouts[:n])
    baselines = [each.reward for each in rollouts[n:] if not each.failed and "score" in each.rewards]
    for baseline, member in product(baselines, [each for each in members if not each.failed]):
        if BASELINE in member.rewards:
            raise RewardError(
                f"row {task.index} of '{task.data_source}': the reward function returns '{BASELINE}',"
                " a name reserved for the greedy rollout: rename it"
            )
        member.rewards[BASELINE] = baseline
    return Group(task, members)


async def side_by_side(attempts: Sequence[Attempt], slots: asyncio.Semaphore) -> list[Rollout]:
    """Run `attempts` concurrently; return their rollouts in order. The first error cancels all others and is raised."""

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
    """End a run if all rollouts of a step failed.

    Raises:
        AllFailedError: every rollout ended with an error.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if rollouts and all(rollout.failed for rollout in rollouts):
        raise AllFailedError(f"all {len(rollouts)} rollouts failed; the first: {rollouts[0].error}")


LENGTH = f"{GUARD}length"


class LengthGuard:
    """Waits for the last of a task's `num` rollouts, then flags the scored rollouts whose length is an outlier.

    Failed rollouts are ignored. The guard changes no score, because a penalty would depend on the other rollouts.
    """

    def __init__(self, num: int, config: GuardsConfig) -> None:
        self._num, self._ratio = num, config.length_ratio
        self._watches = "length" in config.names
        self._ended: list[Rollout] = []

    async def await_one(self, attempt: Callable[[], Awaitable[Rollout]]) -> Rollout:
        """Run `attempt` and return its rollout."""
        rollout = await attempt()
        self._ended.append(rollout)
        if self._watches and len(self._ended) == self._num:
            self._flag_outliers([each for each in self._ended if not each.failed and "score" in each.rewards])
        return rollout

    def _flag_outliers(self, scored: list[Rollout]) -> None:
        lengths = [sum(each.num_trained_tokens for each in rollout.trajectories) for rollout in scored]
        for rollout, unlike in zip(scored, length_outliers(lengths, self._ratio), strict=True):
            rollout.rewards[LENGTH] = float(unlike)
