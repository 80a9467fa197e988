"""No limit of the configuration is exceeded."""

from __future__ import annotations

from agentrl.audit.checker import Checker
from agentrl.audit.known import NO_CONFIG, Known
from agentrl.audit.talks import Talk, Talked


def check_response_limit(check: Checker, talked: Talked, known: Known) -> None:
    """The one limit that every loop has."""
    limit = known.number("data.max_response_length")
    if limit is None:
        check.ledger.skip("limits", NO_CONFIG)
        return
    check.ledger.look("limits", 1)
    for talk in talked.talks:
        if (found := num_response(check, talk)) > limit:
            column = f"trajectories[{talk.number}].segments"
            check.problem("limits", talked.row, column, f"at most {limit} tokens after the prompt", found)


def _tokens(check: Checker, talk: Talk) -> list[int]:
    """Tokens of each segment."""
    step = check.step
    ends = step.items["trajectories.segments"].ends
    lengths: list[int] = (
        step.items["trajectories.segments.token_ids"].lengths[ends[talk.index] : ends[talk.index + 1]].tolist()
    )
    return lengths


def num_response(check: Checker, talk: Talk) -> int:
    """Tokens after the prompt."""
    return sum(_tokens(check, talk)[1:])


def check_limits(check: Checker, known: Known, talked: Talked, talk: Talk, num_users: int) -> None:
    """The limits of a built-in loop."""
    column = f"trajectories[{talk.number}].segments"
    turn_limit, user_limit = known.limit("max_assistant_turns"), known.limit("max_user_turns")
    longest, longest_prompt = known.limit("max_turn_tokens"), known.number("data.max_prompt_length")
    found = {
        "turns of the model": (len(talk.turns), turn_limit),
        "tokens in a turn": (max((len(turn.ids) for turn in talk.turns), default=0), longest),
        "answers of a user": (num_users if known.has_user else 0, user_limit),
        "tokens in the prompt": (sum(_tokens(check, talk)[:1]), longest_prompt),
        "tool calls": (
            sum(call.outcome != "limit_error" for call in talked.calls),
            talked.options.max_tool_calls,
        ),
    }
    for what, (number, limit) in found.items():
        if limit is not None and number > limit:
            check.problem("limits", talked.row, column, f"at most {limit} {what}", number)
