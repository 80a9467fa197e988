"""Conversations with several trajectories: the history was rendered again (`thinking=strip`), or it has branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.audit.conversation import AuditedRollout, AuditedTrajectory


def with_answers(trajectories: Sequence[AuditedTrajectory]) -> list[AuditedTrajectory]:
    """Set `replies` of each continued trajectory's last turn to the messages that the next trajectory's prompt adds."""
    further = {each.parent: each for each in trajectories if each.rendered}
    return [_with_answer(each, further.get(each.number)) for each in trajectories]


def with_first_prompts(trajectories: Sequence[AuditedTrajectory]) -> list[AuditedTrajectory]:
    """Set `first_prompt` of each branch to the first prompt of its conversation, after which response tokens begin."""
    return [
        replace(each, first_prompt=_first(each, trajectories).prompt) if each.branches else each
        for each in trajectories
    ]


def _first(trajectory: AuditedTrajectory, trajectories: Sequence[AuditedTrajectory]) -> AuditedTrajectory:
    """The trajectory that begins the conversation of a branch."""
    numbers = {each.number: each for each in trajectories}
    for _ in trajectories:  # bounded, because parents may form a cycle
        parent = numbers.get(-1 if trajectory.parent is None else trajectory.parent)
        if not trajectory.branches or parent is None:
            break
        trajectory = parent
    return trajectory


def _with_answer(trajectory: AuditedTrajectory, further: AuditedTrajectory | None) -> AuditedTrajectory:
    if further is None or not trajectory.turns or trajectory.turns[-1].replies:
        return trajectory
    replies = further.messages[len(trajectory.messages) : further.num_opening]
    return replace(trajectory, turns=[*trajectory.turns[:-1], replace(trajectory.turns[-1], replies=replies)])


def as_one(rollout: AuditedRollout) -> AuditedRollout:
    """Return a rollout of a built-in loop as one conversation: the last trajectory, with the turns of all trajectories.

    A rollout of a custom loop, or with trajectories that do not continue each other, is returned unchanged.
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
