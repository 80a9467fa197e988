"""Check a rollout's stop reason against its last turn, and its configured limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import NO_SPEECH, AuditedRollout, AuditedTrajectory, Call, Turn
from agentrl.audit.outcomes import ENDED
from agentrl.audit.reading.run_info import NO_CONFIG, RunInfo
from agentrl.audit.turns import can_read, read_turn


def _finished(end: Ending) -> str:
    if end.last is None or end.answered:
        return "a last turn without an answer"
    if end.calls or (end.last.text and can_read(end.talked) and read_turn(end.talked, end.last.text).calls):
        return "a last turn without a call"
    if end.talked.kind == "tool" and end.known.has_user:
        return "another reason: a simulated user was there to answer"
    return "" if end.last.closed or end.talked.kind == "react" else "a last turn that ended itself"


def _max_turns(end: Ending) -> str:
    limit = end.known.limit("max_assistant_turns")
    if limit is None or len(end.talk.turns) != limit:
        return f"{limit or 'a configured number of'} turns of the model, not {len(end.talk.turns)}"
    return "" if end.asks and end.refused and not end.answered else "a last turn that asks for another"


def _max_calls(end: Ending) -> str:
    if end.talked.options.max_tool_calls is None:
        return "another reason: tool calls were not limited"
    if not end.told or len(end.talk.turns) == end.known.limit("max_assistant_turns"):
        return "a turn before that was told no calls are left, and turns left"
    return "" if end.calls and end.refused and not end.answered else "calls that were not run"


def _max_turn_tokens(end: Ending) -> str:
    return "" if end.at_turn_limit and not end.answered and not end.calls else "a last turn as long as a turn may be"


def _max_response(end: Ending) -> str:
    if end.at_response_limit and not end.answered:
        return ""
    unanswered = end.asks and not end.answered and not (end.calls and end.refused)
    return "" if unanswered else "a response as long as it may be, or answers that had no room"


def _cut(end: Ending) -> str:
    if end.talked.stop == "deadline" and not end.known.get("rollout.multi_turn.rollout_timeout_s"):
        return "another reason: rollouts had no deadline"
    if end.last is None or end.answered or (end.calls and end.talked.stop == "deadline"):
        return ""
    if end.calls:  # an engine aborts model turns, not tool calls
        return "a last turn that was cut off, without calls"
    whole = end.last.closed or end.at_turn_limit or end.at_response_limit
    return "a last turn that was cut off, or calls" if whole and not end.known.has_user else ""


def _by_user(end: Ending) -> str:
    return "" if end.known.has_user else "another reason: there was no simulated user"


def _max_users(end: Ending) -> str:
    limit = end.known.limit("max_user_turns")
    return "" if limit is not None and end.num_users == limit else f"{limit} answers of the user, not {end.num_users}"


CONDITIONS: Mapping[str, Callable[[Ending], str]] = {
    "finished": _finished,
    "interaction_ended": _by_user,
    "max_assistant_turns": _max_turns,
    "max_user_turns": _max_users,
    "max_tool_calls": _max_calls,
    "max_turn_tokens": _max_turn_tokens,
    "max_response_tokens": _max_response,
    "deadline": _cut,
    "aborted": _cut,
    "error": lambda end: "",
}
"""Stop reason -> check of the ending; returns the expected ending, or "" if the actual ending agrees."""


def check_ending(check: Checker, talked: AuditedRollout, known: RunInfo) -> None:
    """Check the stop reason, the error text and the limits."""
    _check_error(check, talked)
    ends = [Ending(check, known, talked, talk) for talk in talked.talks]
    for end in ends:
        check_response_limit(end)
    if talked.stop not in CONDITIONS:
        check.problem("stop", talked.row, "stop", "a known reason", talked.stop)
    elif talked.kind is None:
        check.ledger.skip("stop", f"what it asks for: {talked.why}")
    elif any(turn.text is None for talk in talked.talks for turn in talk.turns):
        check.ledger.skip("stop", f"what it asks for: {NO_SPEECH}")
    else:
        for end in ends:
            if wrong := CONDITIONS[talked.stop](end):
                check.problem("stop", talked.row, "stop", wrong, talked.stop)
            check_limits(end)


def _check_error(check: Checker, talked: AuditedRollout) -> None:
    step, row = check.step, talked.row
    check.ledger.look("stop", 1)
    error, infra_failed = step["error"][row], bool(step["infra_failed"][row])
    if (error is not None) != (talked.failed or infra_failed):
        expected = "the error" if error is None else "none, the rollout did not fail"
        check.problem("stop", row, "error", expected, error)
    if infra_failed and not talked.failed and not str(error).startswith("reward: "):
        check.problem("stop", row, "infra_failed", "false, nothing failed", infra_failed)
    infra_call = any(call.outcome == "infra_error" for call in talked.calls)
    if talked.failed and infra_failed != (infra_call or str(error).startswith("InfraError")) and talked.kind == "tool":
        check.problem("stop", row, "infra_failed", "whether the infrastructure failed, as the error says", infra_failed)


@dataclass(frozen=True)
class Ending:
    """The end of a conversation."""

    check: Checker
    known: RunInfo
    talked: AuditedRollout
    talk: AuditedTrajectory

    @cached_property
    def last(self) -> Turn | None:
        """The model's last turn; None if there is none."""
        return self.talk.turns[-1] if self.talk.turns else None

    @cached_property
    def calls(self) -> list[Call]:
        """Calls of the last turn."""
        return self.talked.calls_of(self.talk.number, len(self.talk.turns) - 1)

    @cached_property
    def num_tokens(self) -> list[int]:
        """Number of tokens of each segment."""
        step, path = self.check.step, "trajectories.segments"
        start, end = step.items[path].ends[self.talk.index : self.talk.index + 2]
        lengths: list[int] = step.items[f"{path}.token_ids"].lengths[start:end].tolist()
        return lengths

    @cached_property
    def num_response(self) -> int:
        """Number of tokens after the prompt."""
        return sum(self.num_tokens[1:])

    @cached_property
    def num_users(self) -> int:
        """Number of user messages after model turns."""
        return sum(message["role"] == "user" for turn in self.talk.turns for message in turn.replies)

    @property
    def answered(self) -> bool:
        """Whether a message follows the last turn."""
        return bool(self.last and self.last.replies)

    @property
    def at_turn_limit(self) -> bool:
        """Whether the last turn reached the turn limit before the response limit."""
        num_last = len(self.last.ids) if self.last else 0
        left = self._limit - (self.num_response - num_last)
        limit = self.known.limit("max_turn_tokens")
        return self.last is not None and limit is not None and num_last == limit < left

    @property
    def at_response_limit(self) -> bool:
        """Whether the response reached its limit."""
        return self.num_response == self._limit

    @property
    def _limit(self) -> int:
        return int(self.known.number("data.max_response_length") or 0)

    @property
    def asks(self) -> bool:
        """Whether the last turn expects an answer: it has calls, or there is a simulated user."""
        return bool(self.calls) or self.known.has_user

    @property
    def told(self) -> bool:
        """Whether the model got the error that no calls are left before its last turn."""
        limit, number = self.talked.options.max_tool_calls, len(self.talk.turns) - 2
        made = self.talked.calls_of(self.talk.number, number)
        earlier = [call for call in self.talked.calls if call.turn < number and call.outcome != "limit_error"]
        return limit is not None and len(made) > limit - len(earlier)

    @property
    def refused(self) -> bool:
        """Whether the calls of the last turn, if any, were refused because the conversation had ended."""
        return all(call.outcome == "limit_error" and call.result == ENDED for call in self.calls)


def check_response_limit(end: Ending) -> None:
    """Check the response length, the only limit that every agent loop has."""
    limit = end.known.number("data.max_response_length")
    if limit is None:
        end.check.ledger.skip("limits", NO_CONFIG)
        return
    end.check.ledger.look("limits", 1)
    _hold(end, "tokens after the prompt", end.num_response, limit)


def check_limits(end: Ending) -> None:
    """Check the limits of a built-in agent loop."""
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
