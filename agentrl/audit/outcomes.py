"""Check the outcomes of tool calls against the limits, the calls and their results."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import AuditedRollout, Call, Turn
from agentrl.audit.reading.run_info import RunInfo

OUTCOMES = ("ok", "format_error", "limit_error", "tool_error", "timeout", "infra_error", "aborted")
_CUT_MARK = "...(truncated)..."
ENDED = "Error: not run, the conversation has ended."
"""Result of calls that did not run because a limit ended the conversation after their turn."""


def label(check: Checker, call: Call) -> str:
    """Path of a call within its row."""
    return check.step.items["tool_calls"].label(call.index, "")


class CallLimits:
    """Check a conversation's calls against the limits, turn by turn."""

    def __init__(self, check: Checker, known: RunInfo, rollout: AuditedRollout) -> None:
        self._check = check
        self._known = known
        self._rollout = rollout
        self._names = rollout.options.names
        self._longest = (known.limit("max_tool_response_length") or 0) + len(_CUT_MARK)
        self._num_used = 0
        self._limit_reported = False  # the model got the error that no calls are left
        self._none_runs = False  # no call of this turn may run

    def check_turn(self, number: int, turn: Turn, made: Sequence[Call]) -> None:
        """Check which calls of a turn ran, and their results."""
        limit = self._rollout.options.max_tool_calls
        num_left = len(made) if limit is None else limit - self._num_used
        self._none_runs = self._limit_reported or number + 1 == self._known.limit("max_assistant_turns")
        num_run = 0 if self._none_runs else min(self._known.limit("max_parallel_calls") or 1, num_left)
        for position, call in enumerate(made):
            if expected := self._expected(call, position < num_run, turn):
                self._problem("outcomes", call, "outcome", expected, call.outcome)
            uncut = call.outcome == "aborted" or call.result == ENDED  # text of the agent loop, not of a tool
            if len(call.result) > self._longest and not uncut:
                self._problem("limits", call, "result", f"at most {self._longest} characters", len(call.result))
        self._limit_reported = len(made) > num_left
        self._num_used += sum(call.outcome != "limit_error" for call in made)

    def _problem(self, invariant: str, call: Call, leaf: str, expected: str, found: object) -> None:
        self._check.problem(invariant, self._rollout.row, f"{label(self._check, call)}.{leaf}", expected, found)

    def _expected(self, call: Call, runs: bool, turn: Turn) -> str:
        """Return the expected outcome; "" if the outcome is plausible."""
        if call.outcome == "aborted":
            ended = self._rollout.stop in ("deadline", "aborted", "error") and not turn.replies
            return "" if ended else "another outcome: the rollout continued"
        if (call.outcome == "limit_error") == runs:
            return (
                "another outcome: the call was within the limits" if runs else "limit_error: the call exceeded a limit"
            )
        if (call.result == ENDED) != self._none_runs and call.outcome == "limit_error":
            return "another result: the call was not run"
        if runs and call.name not in self._names and call.outcome != "format_error":
            return f"format_error: there is no tool '{call.name}'"
        if call.outcome != "ok" and not self._is_error_text(call):
            return "ok: the result is not an error"
        if call.outcome == "infra_error" and not self._rollout.failed:
            return "another outcome: the rollout continued"
        return ""

    def _is_error_text(self, call: Call) -> bool:
        head, cut, _ = call.result.partition(_CUT_MARK)
        if self._known.replayed_from and call.outcome == "infra_error" and head.startswith("not recorded: "):
            return True
        return head.startswith("Error: ") or (bool(cut) and "Error: ".startswith(head))


def check_outcome_names(check: Checker, rollout: AuditedRollout) -> None:
    """Check that every outcome has a known name."""
    for call in rollout.calls:
        if call.outcome not in OUTCOMES:
            check.problem("outcomes", rollout.row, f"{label(check, call)}.outcome", "a known outcome", call.outcome)
