"""Check the outcomes of tool calls against the limits, the calls and their results."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import AuditedRollout, AuditedTrajectory, Call, Turn
from agentrl.audit.reading.run_info import RunInfo

OUTCOMES = ("ok", "format_error", "limit_error", "tool_error", "timeout", "infra_error", "aborted")
CUT_MARK = "...(truncated)..."
ENDED = "Error: not run, the conversation has ended."
"""Result of the calls in the last turn if a limit ended the conversation: these calls do not run."""


def label(check: Checker, call: Call) -> str:
    """Path of a call within its row."""
    return check.step.items["tool_calls"].label(call.index, "")


class CallLimits:
    """Check a conversation's calls against the limits, turn by turn.

    Attributes:
        reported: whether the model got the error that no calls are left, in this trajectory or in one that this
            trajectory continues.
    """

    def __init__(
        self, check: Checker, known: RunInfo, rollout: AuditedRollout, trajectory: AuditedTrajectory, reported: bool
    ) -> None:
        self._check = check
        self._known = known
        self._rollout = rollout
        self._trajectory = trajectory
        self._longest = (known.limit("max_tool_response_length") or 0) + len(CUT_MARK)
        self._num_used = 0
        self.reported = reported
        self._none_runs = False  # no call of this turn may run

    def check_turn(self, number: int, turn: Turn, made: Sequence[Call]) -> None:
        """Check which calls of a turn ran, and their results."""
        limit = self._rollout.options.max_tool_calls
        num_used = self._num_used if turn.num_used is None else turn.num_used
        num_left = len(made) if limit is None else max(0, limit - num_used)
        if limit is not None and turn.num_beside:
            num_left = self._num_left_beside(num_left, turn, made)
        most_turns = self._known.limit("max_assistant_turns", of_agent=self._trajectory.of_agent)
        at_limit = self._trajectory.first_turn + number + 1 == most_turns
        self._none_runs = self.reported or at_limit or self._ended(number, made)
        num_run = 0 if self._none_runs else min(self._known.limit("max_parallel_calls") or 1, num_left)
        for position, call in enumerate(made):
            if expected := self._expected(call, position < num_run, turn):
                self._problem("outcomes", call, "outcome", expected, call.outcome)
            uncut = call.outcome == "aborted" or call.result == ENDED  # written by the agent loop, not truncated
            if len(call.result) > self._longest and not uncut:
                self._problem("limits", call, "result", f"at most {self._longest} characters", len(call.result))
        if not self._none_runs:
            self.reported = len(made) > num_left
        self._num_used += sum(call.outcome != "limit_error" for call in made)

    def _num_left_beside(self, num_left: int, turn: Turn, made: Sequence[Call]) -> int:
        """Return `num_left`, or less if parallel conversations may have used some of these calls."""
        ran = sum(call.outcome != "limit_error" for call in made)
        parallel = self._known.limit("max_parallel_calls") or 1
        return num_left if ran >= min(parallel, num_left, len(made)) else max(ran, num_left - turn.num_beside)

    def _ended(self, number: int, made: Sequence[Call]) -> bool:
        """Whether a custom loop passed calls to the tools after the conversation had ended (a user turn may end it)."""
        last = number == len(self._trajectory.turns) - 1
        return self._rollout.own and last and bool(made) and all(call.result == ENDED for call in made)

    def _problem(self, invariant: str, call: Call, leaf: str, expected: str, found: object) -> None:
        self._check.problem(invariant, self._rollout.row, f"{label(self._check, call)}.{leaf}", expected, found)

    def _expected(self, call: Call, runs: bool, turn: Turn) -> str:
        """Return the expected outcome; "" if the outcome is plausible."""
        if call.outcome == "aborted":
            stopped = self._rollout.own or self._rollout.stop in ("deadline", "aborted", "error")
            ended = stopped and not turn.replies
            return "" if ended else "another outcome: the rollout continued"
        if (call.outcome == "limit_error") == runs:
            return (
                "another outcome: the call was within the limits" if runs else "limit_error: the call exceeded a limit"
            )
        if (call.result == ENDED) != self._none_runs and call.outcome == "limit_error":
            return "another result: the call was not run"
        if runs and call.name not in self._trajectory.wording.names and call.outcome != "format_error":
            return f"format_error: there is no tool '{call.name}'"
        if call.outcome != "ok" and not self._is_error_text(call):
            return "ok: the result is not an error"
        if call.outcome == "infra_error" and not (self._rollout.failed or self._rollout.own):
            return "another outcome: the rollout continued"
        return ""

    def _is_error_text(self, call: Call) -> bool:
        head, cut, _ = call.result.partition(CUT_MARK)
        if self._known.replayed_from and call.outcome == "infra_error" and head.startswith("not recorded: "):
            return True
        return head.startswith("Error: ") or (bool(cut) and "Error: ".startswith(head))


def check_outcome_names(check: Checker, rollout: AuditedRollout) -> None:
    """Check that every outcome has a known name."""
    for call in rollout.calls:
        if call.outcome not in OUTCOMES:
            check.problem("outcomes", rollout.row, f"{label(check, call)}.outcome", "a known outcome", call.outcome)
