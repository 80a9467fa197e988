"""Source of labelled conversations: each conversation becomes a group of one scored rollout."""

from __future__ import annotations

from collections.abc import Callable

from agentrl.data.dialogues import Dialogue
from agentrl.data.labelled import Labelled
from agentrl.data.order import Draw, Order
from agentrl.trainer.sources.live import RowSource
from agentrl.types.rollout import Group, Rollout, Stop, TurnReward
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory


class LabelledSource(RowSource):
    """Serves labelled conversations. Labels are turn rewards; the last label is also the rollout's reward.

    Args:
        rows: returns a row by its number.
        render: renders a conversation as a trajectory of demonstrations; called when a step takes the row.
        outcome: name under which the rollout's reward is stored.
        step: name under which the turn rewards are stored.
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
