"""The end of one conversation of a rollout."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import AuditedRollout, AuditedTrajectory, Call, Turn
from agentrl.audit.outcomes import ENDED
from agentrl.audit.reading.run_info import RunInfo


@dataclass(frozen=True)
class Ending:
    """The end of a conversation."""

    check: Checker
    known: RunInfo
    rollout: AuditedRollout
    trajectory: AuditedTrajectory

    @cached_property
    def last(self) -> Turn | None:
        """The model's last turn; None if there is none."""
        return self.trajectory.turns[-1] if self.trajectory.turns else None

    @cached_property
    def calls(self) -> list[Call]:
        """Calls of the last turn."""
        return self.rollout.calls_of(self.trajectory, len(self.trajectory.turns) - 1)

    @cached_property
    def num_tokens(self) -> list[int]:
        """Number of tokens of each segment."""
        step, path = self.check.step, "trajectories.segments"
        start, end = step.items[path].ends[self.trajectory.index : self.trajectory.index + 2]
        lengths: list[int] = step.items[f"{path}.token_ids"].lengths[start:end].tolist()
        return lengths

    @cached_property
    def num_prompt(self) -> int:
        """Number of tokens of the conversation's first prompt."""
        first = self.trajectory.first_prompt
        if first < 0:
            return sum(self.num_tokens[:1])
        return int(self.check.step.items["trajectories.segments.token_ids"].lengths[first])

    @cached_property
    def num_response(self) -> int:
        """Number of tokens of the context after the first prompt."""
        return sum(self.num_tokens) - self.num_prompt

    @cached_property
    def num_users(self) -> int:
        """Number of user messages after model turns."""
        return sum(message["role"] == "user" for turn in self.trajectory.turns for message in turn.replies)

    @property
    def answered(self) -> bool:
        """Whether a message follows the last turn."""
        return bool(self.last and self.last.replies)

    @property
    def at_turn_limit(self) -> bool:
        """Whether the last turn reached the limit of tokens per turn while the response had more tokens left."""
        num_last = len(self.last.ids) if self.last else 0
        left = self._limit - (self.num_response - num_last)
        limit = self.known.limit("max_turn_tokens", of_agent=self.trajectory.of_agent)
        return self.last is not None and limit is not None and num_last == limit < left

    @property
    def at_response_limit(self) -> bool:
        """Whether the response reached its limit."""
        return self.num_response == self._limit

    @property
    def _limit(self) -> int:
        """Maximum number of response tokens; tokens of the prompt above the prompt limit reduce this maximum."""
        response, prompt = (int(self.known.number(f"data.max_{each}_length") or 0) for each in ("response", "prompt"))
        return max(0, min(response, response + prompt - self.num_prompt)) if prompt else response

    @property
    def expects_answer(self) -> bool:
        """Whether the last turn expects an answer: it has calls, or there is a simulated user."""
        return bool(self.calls) or self.known.has_user

    @property
    def limit_reported(self) -> bool:
        """Whether, before its last turn, the model got the error that no calls are left."""
        limit, last = self.rollout.options.max_tool_calls, len(self.trajectory.turns) - 1
        number = max((call.turn for call in self.rollout.calls if call.turn < last), default=-1)
        made = self.rollout.calls_of(self.trajectory, number)
        earlier = [call for call in self.rollout.calls if call.turn < number and call.outcome != "limit_error"]
        return limit is not None and len(made) > limit - len(earlier)

    @property
    def refused(self) -> bool:
        """Whether all calls of the last turn were refused because the conversation had ended; true without calls."""
        return all(call.outcome == "limit_error" and call.result == ENDED for call in self.calls)


def check_limit(end: Ending, what: str, number: int, limit: float | None) -> None:
    """Report a problem if `number`, a count of a trajectory's items, is above `limit`.

    Args:
        what: name of the items.
        limit: maximum of `number`; None if there is no limit.
    """
    if limit is not None and number > limit:
        column = f"trajectories[{end.trajectory.number}].segments"
        end.check.problem("limits", end.rollout.row, column, f"at most {limit} {what}", number)
