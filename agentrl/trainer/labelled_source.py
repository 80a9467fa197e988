"""The source of labelled conversations: each is a group of one, as if it had been rolled out and scored."""

from __future__ import annotations

from collections.abc import Callable

from agentrl.attempt import Group, Rollout, Stop, TurnReward
from agentrl.data.dialogues import Dialogue
from agentrl.data.labelled import Labelled
from agentrl.data.order import Draw, Order
from agentrl.task import Task
from agentrl.trainer.source import RowSource
from agentrl.trajectory import Trajectory


class LabelledSource(RowSource):
    """Serves labelled conversations; the labels are rewards of the turns, and the last one that of the rollout.

    Args:
        rows: by their number.
        render: a conversation as a trajectory of demonstrations; asked for when it is taken.
        outcome: the name of the rollout's reward.
        step: the name of the turns' rewards.
    """

    def __init__(
        self,
        rows: Callable[[int], Labelled],
        render: Callable[[Dialogue, int], Trajectory],
        order: Order,
        groups_per_step: int,
        outcome: str,
        step: str,
    ) -> None:
        super().__init__(order, groups_per_step)
        self._rows, self._render = rows, render
        self._outcome, self._step = outcome, step

    def group_of(self, draw: Draw) -> Group:
        """See `RowSource.group_of`."""
        row = self._rows(draw.row)
        trajectory = self._render(row.dialogue, draw.row)
        turns = [number for number, segment in enumerate(trajectory.segments) if segment.author.trained]
        rewards = [
            TurnReward(0, segment, self._step, label)
            for segment, label in zip(turns, row.labels, strict=True)
            if label is not None
        ]
        rollout = Rollout([trajectory], Stop.FINISHED, {self._outcome: rewards[-1].value}, turn_rewards=rewards)
        task = Task(messages=trajectory.messages, index=draw.row, uid=f"{draw.epoch}-{draw.row}")
        return Group(task, [rollout])
