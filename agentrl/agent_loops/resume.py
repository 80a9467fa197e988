"""State that a saved rollout had before a model turn. A conversation can continue from this state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from agentrl.types.messages import Message
from agentrl.types.rollout import Outcome, Rollout, ToolCall, TurnReward
from agentrl.types.trajectory import Author, Segment


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """State before model turn `num_turns`, counted from 0.

    Attributes:
        segments: saved segments before the turn, with their tokens. Sampled tokens become prompt tokens, so they are
            not trained again.
        messages: all saved messages.
        tool_calls, turn_rewards: tool calls and rewards of the turns before turn `num_turns`.
    """

    segments: Sequence[Segment]
    messages: Sequence[Message]
    tool_calls: Sequence[ToolCall]
    turn_rewards: Sequence[TurnReward]
    num_turns: int

    @classmethod
    def of(cls, saved: Rollout, num_turns: int) -> Self | None:
        """Return the state; None if the first trajectory of `saved` lacks this turn, or `saved` has several dialogues.

        See `Rollout.dialogues`.
        """
        if not saved.trajectories or len(saved.dialogues) > 1:
            return None
        trajectory = saved.trajectories[0]
        turns = [place for place, segment in enumerate(trajectory.segments) if segment.author is Author.MODEL]
        if num_turns >= len(turns):
            return None
        before = turns[num_turns]
        return cls(
            [_given(segment) for segment in trajectory.segments[:before]],
            trajectory.messages,
            [call for call in saved.tool_calls if call.turn < num_turns],
            [reward for reward in saved.turn_rewards if not reward.trajectory and reward.segment < before],
            num_turns,
        )

    @property
    def num_user_turns(self) -> int:
        """Number of answers of the simulated user so far."""
        return sum(segment.author is Author.USER for segment in self.segments)

    def had_refused_calls(self, num_left: int | None) -> bool:
        """Whether the last turn had calls beyond `max_tool_calls`; `num_left` calls are left after that turn."""
        last = [call for call in self.tool_calls if call.turn == self.num_turns - 1]
        num_run = sum(call.outcome is not Outcome.LIMIT_ERROR for call in last)
        return num_left is not None and len(last) > num_left + num_run

    def messages_after(self, num_opening: int) -> Sequence[Message]:
        """Return the messages before model turn `num_turns`; the first `num_opening` messages contain no model turn."""
        turns = [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]
        return self.messages[: [place for place in turns if place >= num_opening][self.num_turns]]


def _given(segment: Segment) -> Segment:
    if segment.author is not Author.MODEL:
        return segment
    return replace(segment, author=Author.PROMPT, logprobs=None, policy_versions=(), temperature=1.0)
