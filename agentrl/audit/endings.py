"""Check a rollout's stop reason against its last turn and the configured limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import NO_TOKENIZER, AuditedRollout
from agentrl.audit.ending import Ending, check_limit
from agentrl.audit.own_endings import check_own_ending
from agentrl.audit.reading.run_info import NO_CONFIG, RunInfo
from agentrl.audit.turns import can_read, read_turn


def _finished(end: Ending) -> str:
    if end.last is None or end.answered:
        return "last turn not answered"
    if end.calls or (end.last.text and can_read(end.trajectory) and read_turn(end.trajectory, end.last).calls):
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
        return "an earlier error that no calls are left, and fewer turns than the turn limit"
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
    return "an unfinished last turn, or a last turn with calls" if complete and not end.known.has_user else ""


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
    "no_summary": lambda end: "another reason: the agent loop asks for no summary",
    "error": lambda end: "",
}
"""Stop reason -> check of the ending. The check returns the expected ending, or "" if the actual ending agrees."""


def check_ending(check: Checker, rollout: AuditedRollout, known: RunInfo) -> None:
    """Check the stop reason, the error text and the limits."""
    _check_error(check, rollout)
    ends = [Ending(check, known, rollout, trajectory) for trajectory in rollout.trajectories]
    for end in ends:
        check_response_limit(end)
    if rollout.stop not in CONDITIONS:
        check.problem("stop", rollout.row, "stop", "a known stop reason", rollout.stop)
    elif rollout.own:
        check_own_ending(ends)
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
        and rollout.kind == "tool"  # a custom loop may catch the error of a call
    ):
        check.problem(
            "stop", row, "infra_failed", "true exactly if the error is an infrastructure failure", infra_failed
        )


def check_response_limit(end: Ending) -> None:
    """Check the response length, the only limit that every agent loop has."""
    limit = end.known.number("data.max_response_length")
    if limit is None:
        end.check.ledger.skip("limits", NO_CONFIG)
        return
    end.check.ledger.count("limits", 1)
    check_limit(end, "tokens after the prompt", end.num_response, limit)


def check_limits(end: Ending) -> None:
    """Check the limits of a built-in agent loop."""
    known, turns = end.known, end.trajectory.turns
    num_calls = sum(call.outcome != "limit_error" for call in end.rollout.calls)
    longest = max((len(turn.ids) for turn in turns), default=0)
    check_limit(end, "model turns", len(turns), known.limit("max_assistant_turns"))
    check_limit(end, "tokens in a turn", longest, known.limit("max_turn_tokens"))
    check_limit(end, "user messages", end.num_users if known.has_user else 0, known.limit("max_user_turns"))
    check_limit(end, "tokens in the prompt", end.num_prompt, known.number("data.max_prompt_length"))
    check_limit(end, "tool calls", num_calls, end.rollout.options.max_tool_calls)
