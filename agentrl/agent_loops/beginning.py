"""A saved rollout as it stood before one of its model turns, for a conversation to go on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from agentrl.attempt import Rollout, ToolCall, TurnReward
from agentrl.messages import Message
from agentrl.trajectory import Author, Segment


@dataclass(frozen=True, slots=True)
class Beginning:
    """What was said before model turn `num_turns`, counted from 0.

    Attributes:
        segments: token by token as saved. What the model sampled is prompt: it is trained where it was sampled.
        messages: all of the saved ones.
        tool_calls, turn_rewards: of the turns before.
    """

    segments: Sequence[Segment]
    messages: Sequence[Message]
    tool_calls: Sequence[ToolCall]
    turn_rewards: Sequence[TurnReward]
    num_turns: int

    @classmethod
    def of(cls, saved: Rollout, num_turns: int) -> Self | None:
        """None where `saved` has no such turn, or rewrote its history and so has several trajectories."""
        if len(saved.trajectories) != 1:
            return None
        (trajectory,) = saved.trajectories
        turns = [place for place, segment in enumerate(trajectory.segments) if segment.author is Author.MODEL]
        if num_turns >= len(turns):
            return None
        before = turns[num_turns]
        return cls(
            [_given(segment) for segment in trajectory.segments[:before]],
            trajectory.messages,
            [call for call in saved.tool_calls if call.turn < num_turns],
            [reward for reward in saved.turn_rewards if reward.segment < before],
            num_turns,
        )

    def messages_after(self, num_opening: int) -> Sequence[Message]:
        """The messages before the turn, where the first `num_opening` were there before the model spoke."""
        said = [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]
        return self.messages[: [place for place in said if place >= num_opening][self.num_turns]]


def _given(segment: Segment) -> Segment:
    if segment.author is not Author.MODEL:
        return segment
    return replace(segment, author=Author.PROMPT, logprobs=None, policy_versions=(), temperature=1.0)
