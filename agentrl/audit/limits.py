"""How a conversation ended, in what its stop reason depends on; and that no limit of the configuration is exceeded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from agentrl.audit.checker import Checker
from agentrl.audit.known import NO_CONFIG, Known
from agentrl.audit.outcomes import ENDED
from agentrl.audit.talks import Call, Talk, Talked, Turn


@dataclass(frozen=True)
class Ending:
    """The end of a conversation."""

    check: Checker
    known: Known
    talked: Talked
    talk: Talk

    @cached_property
    def last(self) -> Turn | None:
        """The model's last turn, None where it took none."""
        return self.talk.turns[-1] if self.talk.turns else None

    @cached_property
    def calls(self) -> list[Call]:
        """That turn's."""
        return self.talked.calls_of(self.talk.number, len(self.talk.turns) - 1)

    @cached_property
    def num_tokens(self) -> list[int]:
        """Of each segment."""
        step, path = self.check.step, "trajectories.segments"
        start, end = step.items[path].ends[self.talk.index : self.talk.index + 2]
        lengths: list[int] = step.items[f"{path}.token_ids"].lengths[start:end].tolist()
        return lengths

    @cached_property
    def num_response(self) -> int:
        """Tokens after the prompt."""
        return sum(self.num_tokens[1:])

    @cached_property
    def num_users(self) -> int:
        """Answers of a user."""
        return sum(message["role"] == "user" for turn in self.talk.turns for message in turn.replies)

    @property
    def answered(self) -> bool:
        """Whether anything follows the last turn."""
        return bool(self.last and self.last.replies)

    @property
    def at_turn_limit(self) -> bool:
        """Whether the last turn ran to its own limit, before the response did."""
        num_last = len(self.last.ids) if self.last else 0
        left = self._limit - (self.num_response - num_last)
        limit = self.known.limit("max_turn_tokens")
        return self.last is not None and limit is not None and num_last == limit < left

    @property
    def at_response_limit(self) -> bool:
        """Whether the response ran to its limit."""
        return self.num_response == self._limit

    @property
    def _limit(self) -> int:
        return int(self.known.number("data.max_response_length") or 0)

    @property
    def asks(self) -> bool:
        """Whether the last turn waits for answers: it calls, or a simulated user reads it."""
        return bool(self.calls) or self.known.has_user

    @property
    def told(self) -> bool:
        """Whether the turn before the last was answered that no calls are left."""
        limit, number = self.talked.options.max_tool_calls, len(self.talk.turns) - 2
        made = self.talked.calls_of(self.talk.number, number)
        earlier = [call for call in self.talked.calls if call.turn < number and call.outcome != "limit_error"]
        return limit is not None and len(made) > limit - len(earlier)

    @property
    def refused(self) -> bool:
        """Whether the calls of the last turn, if any, were refused because the conversation had ended."""
        return all(call.outcome == "limit_error" and call.result == ENDED for call in self.calls)


def check_response_limit(end: Ending) -> None:
    """The one limit that every loop has."""
    limit = end.known.number("data.max_response_length")
    if limit is None:
        end.check.ledger.skip("limits", NO_CONFIG)
        return
    end.check.ledger.look("limits", 1)
    _hold(end, "tokens after the prompt", end.num_response, limit)


def check_limits(end: Ending) -> None:
    """The limits of a built-in loop."""
    known, turns = end.known, end.talk.turns
    num_calls = sum(call.outcome != "limit_error" for call in end.talked.calls)
    longest = max((len(turn.ids) for turn in turns), default=0)
    _hold(end, "turns of the model", len(turns), known.limit("max_assistant_turns"))
    _hold(end, "tokens in a turn", longest, known.limit("max_turn_tokens"))
    _hold(end, "answers of a user", end.num_users if known.has_user else 0, known.limit("max_user_turns"))
    _hold(end, "tokens in the prompt", sum(end.num_tokens[:1]), known.number("data.max_prompt_length"))
    _hold(end, "tool calls", num_calls, end.talked.options.max_tool_calls)


def _hold(end: Ending, what: str, number: int, limit: float | None) -> None:
    if limit is not None and number > limit:
        column = f"trajectories[{end.talk.number}].segments"
        end.check.problem("limits", end.talked.row, column, f"at most {limit} {what}", number)
