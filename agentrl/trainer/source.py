"""Sources of groups: live rollouts of tasks, rows such as saved conversations, rollouts that an earlier run stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from agentrl.attempt import Group, Rollout, Stop
from agentrl.data.order import Draw, Order
from agentrl.rollouts.collector import refuse_all_failed
from agentrl.seeds import derive_seed
from agentrl.task import Task
from agentrl.trainer.parts import Metrics
from agentrl.trainer.sieve import Sieve
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
        sieve: what it does not let through is replaced by further tasks, round after round; None lets all through.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        order: Order,
        groups_per_step: int,
        collect: Callable[[Sequence[Task]], Awaitable[list[Group]]],
        seed: int,
        num_draws: int | None = None,
        sieve: Sieve | None = None,
    ) -> None:
        self.position = 0
        self.pending: Sequence[Draw] = ()
        self._num_draws = num_draws
        self._tasks = tasks
        self._order = order
        self._groups_per_step = groups_per_step
        self._collect = collect
        self._seed = seed
        self._sieve = sieve
        self._metrics: Metrics = {}

    @asynccontextmanager
    async def feeding(self) -> AsyncIterator[None]:
        """Nothing runs between steps, so there is nothing to start or stop."""
        yield

    async def take(self, policy_version: int) -> list[Group]:
        """Roll out the next tasks under the engine's current weights; first those that an earlier life left.

        Raises:
            AllFailedError: every rollout ended with an error.
            NothingToLearnError: the sieve lets none through.
        """
        groups: list[Group] = []
        num_drawn = 0
        while draws := self._draws(num_drawn, self._num_missing(len(groups), num_drawn)):
            rolled_out = await self._collect([task_of(draw, self._tasks, self._seed) for draw in draws])
            num_drawn += len(draws)
            groups += self._let_through(rolled_out)
        if self._sieve:
            self._metrics = self._sieve.end_step(len(groups))
        # only now: of a step that was cut off nothing is done
        self.position += max(0, num_drawn - len(self.pending))
        self.pending = self.pending[num_drawn:]
        return groups

    def metrics(self) -> Metrics:
        """`sampling/...` of the groups taken last, where there is a sieve."""
        return self._metrics

    def _num_missing(self, num_groups: int, num_drawn: int) -> int:
        missing = self._groups_per_step - num_groups
        most = self._sieve.max_drawn if self._sieve else None
        return missing if most is None else min(missing, most - num_drawn)

    def _draws(self, start: int, count: int) -> list[Draw]:
        """`count` of what is left to draw, after the first `start` of it."""
        left = self.pending[start : start + count]
        first = self.position + max(0, start - len(self.pending))
        end = first + count - len(left)
        end = end if self._num_draws is None else min(end, self._num_draws)
        return [*left, *(self._order.at(position) for position in range(first, end))]

    def _let_through(self, groups: list[Group]) -> list[Group]:
        if self._sieve:
            return [group for group in groups if self._sieve.passes(group)]
        refuse_all_failed(groups)
        return groups


def task_of(draw: Draw, tasks: Sequence[Task], seed: int) -> Task:
    """The task of a draw, under a uid of its own."""
    return replace(tasks[draw.row], uid=f"{derive_seed(seed, 'uid', *draw):016x}")


class RowSource(ABC):
    """Serves groups that are made of rows and of nothing else; nothing samples, so nothing is ever stale."""

    def __init__(self, order: Order, groups_per_step: int) -> None:
        self.position = 0
        self.pending: Sequence[Draw] = ()
        self._order = order
        self._groups_per_step = groups_per_step

    @asynccontextmanager
    async def feeding(self) -> AsyncIterator[None]:
        """Nothing runs between steps."""
        yield

    async def take(self, policy_version: int) -> list[Group]:
        """The groups of the next rows."""
        drawn = [self._order.at(self.position + i) for i in range(self._groups_per_step)]
        self.position += len(drawn)
        return [self.group_of(draw) for draw in drawn]

    @abstractmethod
    def group_of(self, draw: Draw) -> Group:
        """The group of a row."""


class SavedSource(RowSource):
    """Serves saved conversations as groups of one.

    Args:
        dialogues: a function of the row, because rendering a conversation is left to when it is needed.
    """

    def __init__(self, dialogues: Callable[[int], Trajectory], order: Order, groups_per_step: int) -> None:
        super().__init__(order, groups_per_step)
        self._dialogues = dialogues

    def group_of(self, draw: Draw) -> Group:
        """See `RowSource.group_of`."""
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
