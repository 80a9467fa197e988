"""Where two attempts at a task part: the first token that differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.trajectory import Author, Trajectory


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token of a saved rollout that another attempt does not have.

    Attributes:
        turn: the model turn it stands in, or is the answer to, counted from 0; -1 in the prompt.
        token: its number in its segment, counted from 0; the segment's length where the other attempt goes on longer.
    """

    trajectory: int
    turn: int
    author: Author
    token: int


def divergence(saved: Sequence[Trajectory], again: Sequence[Trajectory]) -> Divergence | None:
    """None where all tokens of all trajectories are the same."""
    for number, trajectory in enumerate(saved):
        ours, theirs = trajectory.token_ids, again[number].token_ids if number < len(again) else ()
        if ours == theirs:
            continue
        shorter = min(len(ours), len(theirs))
        first = next((place for place in range(shorter) if ours[place] != theirs[place]), shorter)
        return _place(number, trajectory, first)
    return _place(len(saved) - 1, saved[-1], len(saved[-1].token_ids)) if saved and len(again) > len(saved) else None


def _place(number: int, trajectory: Trajectory, position: int) -> Divergence:
    turn, start, last = -1, 0, trajectory.segments[-1]
    for segment in trajectory.segments:
        turn += segment.author is Author.MODEL
        if position < start + len(segment) or segment is last:
            return Divergence(number, turn, segment.author, position - start)
        start += len(segment)
    raise AssertionError("a trajectory has segments")
