"""Sources of groups: live rollouts, rows such as saved conversations, and stored rollouts of an earlier run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from agentrl.data.order import Draw, Order
from agentrl.rollouts.collector import refuse_all_failed
from agentrl.trainer.protocols import Metrics
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory
from agentrl.utils.seeds import derive_seed

if TYPE_CHECKING:
    from agentrl.trainer.sources.dynamic_sampling import GroupFilter  # this import loads torch


class StepwiseSource:
    """Base class of sources that have no rollouts in flight between steps."""

    live = False

    def __init__(self) -> None:
        self.position = 0
        self.pending: Sequence[Draw] = ()

    @asynccontextmanager
    async def feeding(self) -> AsyncIterator[None]:
        """Do nothing: nothing runs between steps."""
        yield

    def metrics(self) -> Metrics:
        """Return no metrics."""
        return {}

    def published(self, version: int) -> None:
        """Do nothing: `take` uses the weights that the engine has."""


class LiveSource(StepwiseSource):
    """On-policy source: rolls out tasks when a step takes them.

    Args:
        tasks: the dataset.
        order: the order of the rows.
        groups_per_step: tasks per step.
        collect: rolls out tasks; groups come in the order of the tasks.
        seed: the run's seed; the uid of a draw is derived from it.
        num_draws: number of tasks that the run rolls out; the last step may be smaller. None: unlimited.
        group_filter: rejects groups, which are replaced by groups of other tasks. None: all groups pass.
    """

    live = True

    def __init__(
        self,
        tasks: Sequence[Task],
        order: Order,
        groups_per_step: int,
        collect: Callable[[Sequence[Task]], Awaitable[list[Group]]],
        seed: int,
        num_draws: int | None = None,
        group_filter: GroupFilter | None = None,
    ) -> None:
        super().__init__()
        self._num_draws = num_draws
        self._tasks = tasks
        self._order = order
        self._groups_per_step = groups_per_step
        self._collect = collect
        self._seed = seed
        self._filter = group_filter
        self._metrics: Metrics = {}

    async def take(self, policy_version: int) -> list[Group]:
        """Roll out the next tasks with the engine's current weights; pending tasks of a resumed run come first.

        Raises:
            AllFailedError: every rollout ended with an error.
            NothingToLearnError: no group passes the filter.
        """
        groups: list[Group] = []
        num_drawn = 0
        while draws := self._draws(num_drawn, self._num_missing(len(groups), num_drawn)):
            rolled_out = await self._collect([task_of(draw, self._tasks, self._seed) for draw in draws])
            num_drawn += len(draws)
            groups += self._let_through(rolled_out)
        if self._filter:
            self._metrics = self._filter.end_step(len(groups))
        # updated at the end, because an interrupted step must leave the position unchanged
        self.position += max(0, num_drawn - len(self.pending))
        self.pending = self.pending[num_drawn:]
        return groups

    def metrics(self) -> Metrics:
        """Return metrics `sampling/...` of the last step's groups; empty without a filter."""
        return self._metrics

    def _num_missing(self, num_groups: int, num_drawn: int) -> int:
        missing = self._groups_per_step - num_groups
        most = self._filter.max_drawn if self._filter else None
        return missing if most is None else min(missing, most - num_drawn)

    def _draws(self, start: int, count: int) -> list[Draw]:
        """Skip `start` draws and return up to `count` draws after them. Pending draws come before new draws."""
        left = self.pending[start : start + count]
        first = self.position + max(0, start - len(self.pending))
        end = first + count - len(left)
        end = end if self._num_draws is None else min(end, self._num_draws)
        return [*left, *(self._order.at(position) for position in range(first, end))]

    def _let_through(self, groups: list[Group]) -> list[Group]:
        if self._filter:
            return [group for group in groups if self._filter.passes(group)]
        refuse_all_failed(groups)
        return groups


def task_of(draw: Draw, tasks: Sequence[Task], seed: int) -> Task:
    """Return the task of a draw, with a uid derived from the draw."""
    return replace(tasks[draw.row], uid=f"{derive_seed(seed, 'uid', *draw):016x}")


class RowSource(StepwiseSource, ABC):
    """Base class of sources that build groups from rows without sampling. Such groups are never stale."""

    def __init__(self, order: Order, groups_per_step: int) -> None:
        super().__init__()
        self._order = order
        self._groups_per_step = groups_per_step

    async def take(self, policy_version: int) -> list[Group]:
        """Return the groups of the next rows."""
        drawn = [self._order.at(self.position + i) for i in range(self._groups_per_step)]
        self.position += len(drawn)
        return [self.group_of(draw) for draw in drawn]

    @abstractmethod
    def group_of(self, draw: Draw) -> Group:
        """Return the group of a row."""


class SavedSource(RowSource):
    """Serves saved conversations, each as a group of one rollout.

    Args:
        dialogues: renders the conversation of a row when a step takes the row.
    """

    def __init__(self, dialogues: Callable[[int], Trajectory], order: Order, groups_per_step: int) -> None:
        super().__init__(order, groups_per_step)
        self._dialogues = dialogues

    def group_of(self, draw: Draw) -> Group:
        """See `RowSource.group_of`."""
        trajectory = self._dialogues(draw.row)
        task = Task(messages=trajectory.messages, index=draw.row, uid=f"{draw.epoch}-{draw.row}")
        return Group(task, [Rollout([trajectory], Stop.FINISHED)])


class StoredSource(StepwiseSource):
    """Serves stored rollouts step by step, in the groups in which they were sampled. Nothing is sampled.

    Args:
        read: returns the groups of a step.
        steps: the steps to serve, in this order.
    """

    def __init__(self, read: Callable[[int], list[Group]], steps: Sequence[int]) -> None:
        super().__init__()
        self._read = read
        self._steps = steps

    async def take(self, policy_version: int) -> list[Group]:
        """Return the groups of the next step."""
        groups = self._read(self._steps[self.position])
        self.position += 1
        return groups
