"""Check a rollout's stop reason against its last turn and the configured limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import NO_TOKENIZER, AuditedRollout, AuditedTrajectory, Call, Turn
from agentrl.audit.outcomes import ENDED
from agentrl.audit.reading.run_info import NO_CONFIG, RunInfo
from agentrl.audit.turns import can_read, read_turn


def _finished(end: Ending) -> str:
    if end.last is None or end.answered:
        return "last turn not answered"
    if end.calls or (end.last.text and can_read(end.rollout) and read_turn(end.rollout, end.last.text).calls):
        return "last turn without calls"
    if end.rollout.kind == "tool" and end.known.has_user:
        return "another reason: a simulated user is configured"
    return "" if end.last.closed or end.rollout.kind == "react" else "last turn with an end token"


def _max_turns(end: Ending) -> str:
    limit = end.known.limit("max_assistant_turns")
    if limit is None or len(end.trajectory.turns) != limit:
        return f"{limit or 'a configured number of'} model turns, not {len(end.trajectory.turns)}"
    return (
        ""
        if end.expects_answer and end.refused and not end.answered
        else "last turn with calls or a simulated user, not answered"
    )


def _max_calls(end: Ending) -> str:
    if end.rollout.options.max_tool_calls is None:
        return "another reason: tool calls have no limit"
    if not end.limit_reported or len(end.trajectory.turns) == end.known.limit("max_assistant_turns"):
        return "earlier error that no calls are left, and turns left"
    return "" if end.calls and end.refused and not end.answered else "last turn with calls that were not run"


def _max_turn_tokens(end: Ending) -> str:
    return (
        ""
        if end.at_turn_limit and not end.answered and not end.calls
        else "last turn with the maximum number of tokens"
    )


def _max_response(end: Ending) -> str:
    if end.at_response_limit and not end.answered:
        return ""
    unanswered = end.expects_answer and not end.answered and not (end.calls and end.refused)
    return "" if unanswered else "response with the maximum number of tokens, or tool results that did not fit"


def _cut(end: Ending) -> str:
    if end.rollout.stop == "deadline" and not end.known.get("rollout.multi_turn.rollout_timeout_s"):
        return "another reason: rollouts have no deadline"
    if end.last is None or end.answered or (end.calls and end.rollout.stop == "deadline"):
        return ""
    if end.calls:  # an engine aborts model turns, not tool calls
        return "unfinished last turn without calls"
    complete = end.last.closed or end.at_turn_limit or end.at_response_limit
    return "unfinished last turn, or calls" if complete and not end.known.has_user else ""


def _by_user(end: Ending) -> str:
    return "" if end.known.has_user else "another reason: no simulated user is configured"


def _by_environment(end: Ending) -> str:
    if not end.known.environment:
        return "another reason: no environment is configured"
    return "" if end.calls and end.answered else "last turn with answered calls"


def _max_users(end: Ending) -> str:
    limit = end.known.limit("max_user_turns")
    return "" if limit is not None and end.num_users == limit else f"{limit} user messages, not {end.num_users}"


CONDITIONS: Mapping[str, Callable[[Ending], str]] = {
    "finished": _finished,
    "interaction_ended": _by_user,
    "environment_done": _by_environment,
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


def check_ending(check: Checker, rollout: AuditedRollout, known: RunInfo) -> None:
    """Check the stop reason, the error text and the limits."""
    _check_error(check, rollout)
    ends = [Ending(check, known, rollout, trajectory) for trajectory in rollout.trajectories]
    for end in ends:
        check_response_limit(end)
    if rollout.stop not in CONDITIONS:
        check.problem("stop", rollout.row, "stop", "a known stop reason", rollout.stop)
    elif rollout.kind is None:
        check.ledger.skip("stop", f"conditions of the stop reason: {rollout.why}")
    elif any(turn.text is None for trajectory in rollout.trajectories for turn in trajectory.turns):
        check.ledger.skip("stop", f"conditions of the stop reason: {NO_TOKENIZER}")
    else:
        for end in ends:
            if wrong := CONDITIONS[rollout.stop](end):
                check.problem("stop", rollout.row, "stop", wrong, rollout.stop)
            check_limits(end)


def _check_error(check: Checker, rollout: AuditedRollout) -> None:
    step, row = check.step, rollout.row
    check.ledger.count("stop", 1)
    error, infra_failed = step["error"][row], bool(step["infra_failed"][row])
    if (error is not None) != (rollout.failed or infra_failed):
        expected = "an error message" if error is None else "none: the rollout did not fail"
        check.problem("stop", row, "error", expected, error)
    if infra_failed and not rollout.failed and not str(error).startswith("reward: "):
        check.problem("stop", row, "infra_failed", "false: nothing failed", infra_failed)
    infra_call = any(call.outcome == "infra_error" for call in rollout.calls)
    if (
        rollout.failed
        and infra_failed != (infra_call or str(error).startswith("InfraError"))
        and rollout.kind == "tool"
    ):
        check.problem(
            "stop", row, "infra_failed", "true exactly if the error is an infrastructure failure", infra_failed
        )


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
        return self.rollout.calls_of(self.trajectory.number, len(self.trajectory.turns) - 1)

    @cached_property
    def num_tokens(self) -> list[int]:
        """Number of tokens of each segment."""
        step, path = self.check.step, "trajectories.segments"
        start, end = step.items[path].ends[self.trajectory.index : self.trajectory.index + 2]
        lengths: list[int] = step.items[f"{path}.token_ids"].lengths[start:end].tolist()
        return lengths

    @cached_property
    def num_response(self) -> int:
        """Number of tokens after the prompt."""
        return sum(self.num_tokens[1:])

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
    def expects_answer(self) -> bool:
        """Whether the last turn expects an answer: it has calls, or there is a simulated user."""
        return bool(self.calls) or self.known.has_user

    @property
    def limit_reported(self) -> bool:
        """Whether, before its last turn, the model got the error that no calls are left."""
        limit, number = self.rollout.options.max_tool_calls, len(self.trajectory.turns) - 2
        made = self.rollout.calls_of(self.trajectory.number, number)
        earlier = [call for call in self.rollout.calls if call.turn < number and call.outcome != "limit_error"]
        return limit is not None and len(made) > limit - len(earlier)

    @property
    def refused(self) -> bool:
        """Whether all calls of the last turn were refused because the conversation had ended."""
        return all(call.outcome == "limit_error" and call.result == ENDED for call in self.calls)


def check_response_limit(end: Ending) -> None:
    """Check the response length, the only limit that every agent loop has."""
    limit = end.known.number("data.max_response_length")
    if limit is None:
        end.check.ledger.skip("limits", NO_CONFIG)
        return
    end.check.ledger.count("limits", 1)
    _check_limit(end, "tokens after the prompt", end.num_response, limit)


def check_limits(end: Ending) -> None:
    """Check the limits of a built-in agent loop."""
    known, turns = end.known, end.trajectory.turns
    num_calls = sum(call.outcome != "limit_error" for call in end.rollout.calls)
    longest = max((len(turn.ids) for turn in turns), default=0)
    _check_limit(end, "model turns", len(turns), known.limit("max_assistant_turns"))
    _check_limit(end, "tokens in a turn", longest, known.limit("max_turn_tokens"))
    _check_limit(end, "user messages", end.num_users if known.has_user else 0, known.limit("max_user_turns"))
    _check_limit(end, "tokens in the prompt", sum(end.num_tokens[:1]), known.number("data.max_prompt_length"))
    _check_limit(end, "tool calls", num_calls, end.rollout.options.max_tool_calls)


def _check_limit(end: Ending, what: str, number: int, limit: float | None) -> None:
    if limit is not None and number > limit:
        column = f"trajectories[{end.trajectory.number}].segments"
        end.check.problem("limits", end.rollout.row, column, f"at most {limit} {what}", number)
