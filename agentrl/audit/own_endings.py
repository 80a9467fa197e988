"""Check the stop reason of custom agent loops: one of the conversations must meet the condition of the reason.

A custom loop decides itself when it ends, and may end with the stop reason of any of its conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from agentrl.audit.ending import Ending, check_limit

_OF_AGENTS = ("max_assistant_turns", "max_turn_tokens")


def _num_turns(end: Ending) -> int:
    if end.rollout.by_gateway:
        return end.rollout.num_turns
    return end.trajectory.first_turn + len(end.trajectory.turns)


def _num_users(end: Ending) -> int:
    """Number of simulated-user turns (each has a turn reward) in the trajectory and in those that it continues."""
    parents = {trajectory.number: trajectory.parent for trajectory in end.rollout.trajectories}
    chain = [end.trajectory.number]
    while (parent := parents.get(chain[-1])) is not None and parent < chain[-1]:
        chain.append(parent)
    step = end.check.step
    start, stop = step.items["turn_rewards"].ends[end.rollout.row : end.rollout.row + 2].tolist()
    scored = zip(step["turn_rewards.trajectory"][start:stop], step["turn_rewards.name"][start:stop], strict=True)
    return sum(name == "interaction" and int(number) in chain for number, name in scored)


def _max_turns(end: Ending) -> str:
    limit = end.known.limit("max_assistant_turns", of_agent=end.trajectory.of_agent)
    return "" if _num_turns(end) == limit else f"{limit or 'a configured number of'} model turns, not {_num_turns(end)}"


def _max_users(end: Ending) -> str:
    limit = end.known.limit("max_user_turns")
    found = _num_users(end)
    return "" if limit is not None and found == limit else f"{limit} turns of the simulated user, not {found}"


def _by_user(end: Ending) -> str:
    return "" if end.known.has_user else "another reason: no simulated user is configured"


def _by_environment(end: Ending) -> str:
    return "" if end.known.environment else "another reason: no environment is configured"


def _max_calls(end: Ending) -> str:
    limit = end.rollout.options.max_tool_calls
    if limit is None:
        return "another reason: tool calls have no limit"
    made = [(len(end.rollout.calls_of(end.trajectory, i)), turn) for i, turn in enumerate(end.trajectory.turns)]
    used = ((count, (turn.num_used or 0) + turn.num_beside) for count, turn in made if turn.num_used is not None)
    reported = any(count > limit - most for count, most in used)
    return "" if reported else "an earlier error that no calls are left"


def _no_summary(end: Ending) -> str:
    request = end.known.request(end.check.step["agent_name"][end.rollout.row])
    last = end.last
    if request is None or last is None or end.trajectory.messages[last.position - 1] != request:
        return "last turn after a request for a summary"
    is_summary = "tool_calls" not in last.message and str(last.message.get("content") or "").strip()
    return "last turn without a summary" if is_summary else ""


def _max_turn_tokens(end: Ending) -> str:
    return "" if end.at_turn_limit and not end.calls else "last turn with the maximum number of tokens"


def _max_response(end: Ending) -> str:
    numbers = [each for each in end.rollout.operations if each.trajectory == end.trajectory.number]
    rejected = bool(numbers) and numbers[-1].kind != "model_turn" and not numbers[-1].num_messages
    full = end.at_response_limit or rejected
    return "" if full else "response with the maximum number of tokens, or messages that did not fit"


def _deadline(end: Ending) -> str:
    configured = end.known.get("rollout.multi_turn.rollout_timeout_s")
    return "" if configured else "another reason: rollouts have no deadline"


CONDITIONS: Mapping[str, Callable[[Ending], str]] = {
    "max_assistant_turns": _max_turns,
    "max_user_turns": _max_users,
    "interaction_ended": _by_user,
    "environment_done": _by_environment,
    "max_tool_calls": _max_calls,
    "max_turn_tokens": _max_turn_tokens,
    "max_response_tokens": _max_response,
    "deadline": _deadline,
    "no_summary": _no_summary,
}
"""Stop reason -> check of one conversation. The check returns the expected ending, or "" if the reason is possible."""


def check_own_ending(ends: Sequence[Ending]) -> None:
    """Check the limits of each conversation, and that the stop reason is possible for at least one conversation."""
    for end in ends:
        _check_limits(end)
    condition = CONDITIONS.get(ends[0].rollout.stop) if ends else None
    wrong = [condition(end) for end in ends] if condition else []
    if wrong and all(wrong):
        ends[0].check.problem("stop", ends[0].rollout.row, "stop", wrong[-1], ends[0].rollout.stop)


def _check_limits(end: Ending) -> None:
    known, trajectory = end.known, end.trajectory
    longest = max((len(turn.ids) for turn in trajectory.turns), default=0)
    most_turns, longest_turn = (known.limit(each, of_agent=trajectory.of_agent) for each in _OF_AGENTS)
    check_limit(end, "model turns", _num_turns(end), most_turns)
    check_limit(end, "tokens in a turn", longest, longest_turn)
    check_limit(end, "turns of the simulated user", _num_users(end), known.limit("max_user_turns"))
    if trajectory.opened_with_task:
        check_limit(end, "tokens in the prompt", end.num_prompt, known.number("data.max_prompt_length"))
