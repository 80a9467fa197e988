"""The tasks of a run and their order: rows of files, and tasks that rollouts add."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from agentrl.config import RunConfig
from agentrl.config.data import PASS_RATE
from agentrl.data.curriculum import LearningOrder, PassRateOrder, column_keys
from agentrl.data.online import Inbox, OnlineOrder, OnlineTasks
from agentrl.data.order import Draw, Order, task_order
from agentrl.data.rows.base import Row
from agentrl.data.tasks import TaskTable, read_task
from agentrl.rollouts.collector import Attempt
from agentrl.run_folder.checkpoints import load_state
from agentrl.run_folder.files import write_atomically
from agentrl.trainer.protocols import SaveModel
from agentrl.types.rollout import Group, Rollout
from agentrl.types.task import Task

FILE = "data_state.json"
"""File in a checkpoint with the state of the task order, if rollouts change the order (pass rates, added tasks)."""

GroupOf = Callable[[Task, Sequence[Rollout]], Group]


@dataclass(slots=True)
class Feed:
    """The tasks of a run and their order.

    Attributes:
        tasks: the tasks; `Draw.row` is an index into them.
        learning: the order, if it depends on the rollouts of earlier draws; else None.
        inbox: receives tasks that rollouts add; None if rollouts may add no tasks.
    """

    tasks: Sequence[Task]
    order: Order
    learning: LearningOrder | None = None
    inbox: Inbox | None = None

    def observed(
        self, roll_out: Callable[[Sequence[Task]], Awaitable[list[Group]]]
    ) -> Callable[[Sequence[Task]], Awaitable[list[Group]]]:
        """Wrap `roll_out` so that the order observes the groups before the next task is drawn."""
        learning = self.learning
        if learning is None:
            return roll_out

        async def rolled_out(tasks: Sequence[Task]) -> list[Group]:
            groups = await roll_out(tasks)
            learning.observe(groups)
            return groups

        return rolled_out

    def observed_one_by_one(self, group_of: GroupOf) -> GroupOf:
        """Wrap `group_of` so that the order observes each group when it finishes."""
        learning = self.learning
        if learning is None:
            return group_of

        def grouped(task: Task, rollouts: Sequence[Rollout]) -> Group:
            group = group_of(task, rollouts)
            learning.observe([group])
            return group

        return grouped

    def adding(self, attempts: Callable[[Task, int], list[Attempt]]) -> Callable[[Task, int], list[Attempt]]:
        """Wrap `attempts` so that rollouts may add tasks."""
        inbox = self.inbox
        if inbox is None:
            return attempts

        def attempts_that_add(task: Task, priority: int) -> list[Attempt]:
            of_task = attempts(task, priority)
            return [inbox.within(task.uid, number, attempt) for number, attempt in enumerate(of_task)]

        return attempts_that_add

    def keep_while_in(self, in_flight: Callable[[], Iterable[Draw]]) -> None:
        """Keep the added tasks of the draws that `in_flight` returns, because the source may still need these tasks."""
        if isinstance(self.order, OnlineOrder):
            self.order.in_flight = in_flight

    def metrics(self) -> dict[str, float]:
        """Return metrics `curriculum/...` and `online/...`, if these features are used."""
        return self.learning.metrics() if self.learning else {}

    async def save(self, checkpoint: Path, save_model: SaveModel) -> None:
        """See `Checkpointable.save`."""
        if self.learning:
            write_atomically(checkpoint / FILE, json.dumps(self.learning.state_dict()))

    async def load(self, checkpoint: Path) -> None:
        """See `Checkpointable.load`.

        Raises:
            ConfigError: the file cannot be read.
        """
        if self.learning:
            load_state(checkpoint / FILE, self.learning.load_state_dict)


def open_feed(config: RunConfig, tasks: TaskTable, fit: Callable[[Task], Task]) -> Feed:
    """Open the feed that `data.*` configures.

    Args:
        fit: cuts the prompt of an added task if it is too long; raises FieldError or DataError for invalid tasks.

    Raises:
        DataError: a row lacks the value that the curriculum sorts by.
    """
    data, seed = config.data, config.trainer.seed if config.data.seed is None else config.data.seed
    by = data.curriculum.by
    keys = None if by in (None, PASS_RATE) else column_keys(tasks, data.curriculum)
    order: Order = task_order(tasks.file_sizes, data.dataset_weights, seed, data.shuffle, keys)
    learning: LearningOrder | None = None
    if by == PASS_RATE:
        threshold = config.reward.success_threshold
        order = learning = PassRateOrder(order, data.curriculum, threshold, seed, tasks.position_of)
    if not data.online.max_tasks:
        return Feed(tasks, order, learning)

    def read(row: Row, number: int) -> Task:
        return fit(read_task(data, row, number))

    online = OnlineTasks(data.online, read, tasks.num_positions)
    mixed = OnlineOrder(order, learning, online, data.online, seed)
    return Feed(_Both(tasks, online), mixed, mixed, online.inbox)


@dataclass(frozen=True, slots=True)
class _Both(Sequence[Task]):
    """Rows of files, followed by the added tasks. The length counts only the rows of files."""

    files: TaskTable
    online: OnlineTasks

    def __len__(self) -> int:
        return len(self.files)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice) or index < self.online.first_row:
            return self.files[index]
        return self.online[index]
