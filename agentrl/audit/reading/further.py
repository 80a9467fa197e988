"""Conversations with several trajectories, because their history was rendered again (`thinking=strip`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.audit.conversation import AuditedRollout, AuditedTrajectory


def with_answers(trajectories: Sequence[AuditedTrajectory]) -> list[AuditedTrajectory]:
    """Set the answers to the last turn of each trajectory that a further one continues: they are in its prompt."""
    further = {each.parent: each for each in trajectories if each.rendered}
    return [_with_answer(each, further.get(each.number)) for each in trajectories]


def _with_answer(trajectory: AuditedTrajectory, further: AuditedTrajectory | None) -> AuditedTrajectory:
    if further is None or not trajectory.turns or trajectory.turns[-1].replies:
        return trajectory
    replies = further.messages[len(trajectory.messages) : further.num_opening]
    return replace(trajectory, turns=[*trajectory.turns[:-1], replace(trajectory.turns[-1], replies=replies)])


def as_one(rollout: AuditedRollout) -> AuditedRollout:
    """Return a rollout of a built-in loop as one conversation: all turns in one trajectory, with the last messages.

    Rollouts of own loops, and those whose trajectories do not continue each other, are not changed.
    """
    before = [each.number for each in rollout.trajectories[:-1]]
    continued = [each.parent for each in rollout.trajectories[1:] if each.rendered]
    fits = all(each.fits for each in rollout.trajectories)
    if rollout.own or not before or continued != before or not fits:
        return rollout
    first, last = rollout.trajectories[0], rollout.trajectories[-1]
    turns = [turn for trajectory in rollout.trajectories for turn in trajectory.turns]
    whole = replace(
        last,
        num_opening=first.num_opening,
        turns=turns,
        first_turn=0,
        parent=None,
        opened_with_task=first.opened_with_task,
        appended=(),
    )
    calls = [replace(call, trajectory=last.number) for call in rollout.calls]
    return replace(rollout, trajectories=[whole], calls=calls)
