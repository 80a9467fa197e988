"""Three sources of groups: live rollouts of tasks, saved conversations, and the rollouts an earlier run stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from agentrl.attempt import Group, Rollout, Stop
from agentrl.data.order import Draw, TaskOrder
from agentrl.seeds import derive_seed
from agentrl.task import Task
from agentrl.trajectory import Trajectory


class LiveSource:
    """Rolls tasks out when they are asked for: on-policy, nothing is in flight between steps.

    Args:
        tasks: the dataset.
        order: which rows come when.
        groups_per_step: tasks a step.
        collect: rolls tasks out, in their order.
        seed: the run's seed; the uid of a draw is derived from it.
        num_draws: tasks of the whole run; the last step holds what is left of them. None for no end.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        order: TaskOrder,
        groups_per_step: int,
        collect: Callable[[Sequence[Task]], Awaitable[list[Group]]],
        seed: int,
        num_draws: int | None = None,
    ) -> None:
        self.position = 0
        self.pending: Sequence[Draw] = ()
        self._num_draws = num_draws
        self._tasks = tasks
        self._order = order
        self._groups_per_step = groups_per_step
        self._collect = collect
        self._seed = seed

    @asynccontextmanager
    async def feeding(self) -> AsyncIterator[None]:
        """Nothing runs between steps, so there is nothing to start or stop."""
        yield

    async def take(self, policy_version: int) -> list[Group]:
        """Roll out the next tasks under the engine's current weights; first those that an earlier life left."""
        left, later = self.pending[: self._groups_per_step], self.pending[self._groups_per_step :]
        end = self.position + self._groups_per_step - len(left)
        end = end if self._num_draws is None else min(end, self._num_draws)
        drawn = [self._order.at(position) for position in range(self.position, end)]
        groups = await self._collect([task_of(draw, self._tasks, self._seed) for draw in (*left, *drawn)])
        self.position, self.pending = self.position + len(drawn), later
        return groups


def task_of(draw: Draw, tasks: Sequence[Task], seed: int) -> Task:
    """The task of a draw, under a uid of its own."""
    return replace(tasks[draw.row], uid=f"{derive_seed(seed, 'uid', *draw):016x}")


class SavedSource:
    """Serves saved conversations as groups of one; nothing samples, so nothing is ever stale.

    Args:
        dialogues: a function of the row, because rendering a conversation is left to when it is needed.
    """

    def __init__(self, dialogues: Callable[[int], Trajectory], order: TaskOrder, groups_per_step: int) -> None:
        self.position = 0
        self.pending: Sequence[Draw] = ()
        self._dialogues = dialogues
        self._order = order
        self._groups_per_step = groups_per_step

    @asynccontextmanager
    async def feeding(self) -> AsyncIterator[None]:
        """Nothing runs between steps."""
        yield

    async def take(self, policy_version: int) -> list[Group]:
        """The next conversations."""
        drawn = [self._order.at(self.position + i) for i in range(self._groups_per_step)]
        self.position += len(drawn)
        return [self._group(draw) for draw in drawn]

    def _group(self, draw: Draw) -> Group:
        trajectory = self._dialogues(draw.row)
        task = Task(messages=trajectory.messages, index=draw.row, uid=f"{draw.epoch}-{draw.row}")
        return Group(task, [Rollout([trajectory], Stop.FINISHED)])


class StoredSource:
    """Serves stored rollouts again, step by step, as they were sampled; whatever sampled them, nothing does now.

    Args:
        read: the groups of a step.
        steps: those to serve, in this order.
    """

    def __init__(self, read: Callable[[int], list[Group]], steps: Sequence[int]) -> None:
        self.position = 0
        self.pending: Sequence[Draw] = ()
        self._read = read
        self._steps = steps

    @asynccontextmanager
    async def feeding(self) -> AsyncIterator[None]:
        """Nothing runs between steps."""
        yield

    async def take(self, policy_version: int) -> list[Group]:
        """The groups of the next step."""
        groups = self._read(self._steps[self.position])
        self.position += 1
        return groups
