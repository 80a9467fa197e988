"""Why a rollout ended, held against how it ended, and the limits it had to keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentrl.audit.checker import Checker
from agentrl.audit.known import Known
from agentrl.audit.limits import Ending, check_limits, check_response_limit
from agentrl.audit.talks import NO_SPEECH, Talked
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
    if end.calls:  # an engine aborts a turn, not what answers it
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
"""Stop reason -> what it asks of the ending: what is missing, or "" where it holds."""


def check_ending(check: Checker, talked: Talked, known: Known) -> None:
    """The stop reason, the error text, and the limits."""
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


def _check_error(check: Checker, talked: Talked) -> None:
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
