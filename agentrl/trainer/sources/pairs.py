"""Source of saved preference pairs: each pair becomes a group of two scored rollouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agentrl.data.dialogues import Dialogue
from agentrl.data.order import Draw, Order
from agentrl.data.pairs import Pair
from agentrl.trainer.sources.live import RowSource
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Trajectory


class PairSource(RowSource):
    """Serves pairs as groups of two rollouts: the chosen rollout has score 1, the rejected rollout score 0.

    Only the assistant turns after the shared prompt are trained on.

    Args:
        pairs: returns the pair of a row.
        render: renders a conversation as a trajectory of demonstrations; called when a step takes the pair.
    """

    def __init__(
        self,
        pairs: Callable[[int], Pair],
        render: Callable[[Dialogue, int], Trajectory],
        order: Order,
        groups_per_step: int,
    ) -> None:
        super().__init__(order, groups_per_step)
        self._pairs = pairs
        self._render = render

    def group_of(self, draw: Draw) -> Group:
        """See `RowSource.group_of`."""
        pair = self._pairs(draw.row)
        sides = (pair.chosen, 1.0), (pair.rejected, 0.0)
        rollouts = [
            Rollout([self._answer(dialogue, draw.row, pair)], Stop.FINISHED, rewards={"score": score})
            for dialogue, score in sides
        ]
        return Group(Task(messages=pair.prompt, index=draw.row, uid=f"{draw.epoch}-{draw.row}"), rollouts)

    def _answer(self, dialogue: Dialogue, row: int, pair: Pair) -> Trajectory:
        return answering(self._render(dialogue, row), pair)


def answering(trajectory: Trajectory, pair: Pair) -> Trajectory:
    """Return the trajectory of one side of `pair`, with the model turns of the shared prompt marked as not trained."""
    # a leading assistant message is rendered as part of the prompt, so it is not counted
    shared = sum(message["role"] == "assistant" for message in pair.prompt[1:])
    segments = []
    for segment in trajectory.segments:
        if segment.author is Author.DEMONSTRATION and shared:
            shared, segment = shared - 1, replace(segment, author=Author.PROMPT)
        segments.append(segment)
    return Trajectory(segments, trajectory.messages)
