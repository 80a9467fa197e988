"""Check messages against segments, parse the model's text again, and check calls, results and outcomes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from agentrl.audit import calls as reading
from agentrl.audit.checks import Checker
from agentrl.audit.conversation import (
    NO_TOKENIZER,
    UNPARSED,
    AuditedRollout,
    AuditedTrajectory,
    Call,
    Turn,
    are_messages,
    text_content,
)
from agentrl.audit.given import answered_calls, check_given
from agentrl.audit.long_tasks import without_request
from agentrl.audit.outcomes import CallLimits, check_outcome_names, label
from agentrl.audit.reading.run_info import Json, RunInfo

OWN_WORDING = "the custom loop's own conversation class writes these messages"
_OLDER_FORMATS = (None, "hermes", "react")
_UNKNOWN_FORMAT = "unknown call format '{}'"


def check_messages(check: Checker, rollout: AuditedRollout, known: RunInfo) -> None:
    """Check that the messages start with the task's messages, and then contain one message per turn."""
    check.ledger.count("messages", 1)
    for trajectory in rollout.trajectories:
        column = f"trajectories[{trajectory.number}].messages"
        if rollout.kind is None and trajectory.prompt < 0:
            # imported from another framework; agentrl always saves tokens
            check.ledger.skip("messages", "comparison with segments: the rollout has no tokens")
        elif not trajectory.fits and not rollout.own:  # the invariant `operations` covers custom loops
            turns = sum(message["role"] == "assistant" for message in trajectory.messages[trajectory.num_opening :])
            expected = "a message for each turn and each answer, in the order of the segments"
            check.problem(
                "messages", rollout.row, column, expected, f"{turns} turns, {len(trajectory.messages)} messages"
            )
        for position, message in enumerate(trajectory.messages):
            if message["role"] not in ("system", "developer", "user", "assistant", "tool"):
                check.problem("messages", rollout.row, f"{column}[{position}].role", "a chat role", message["role"])
    if rollout.kind is None:
        check.ledger.skip("messages", f"first messages: {rollout.why}")
        return
    if len(rollout.trajectories) != 1 and not (rollout.own or rollout.failed or rollout.stop == "deadline"):
        check.problem("messages", rollout.row, "trajectories", "one trajectory", f"{len(rollout.trajectories)}")
    if not are_messages(rollout.task):
        check.problem("messages", rollout.row, "messages", "a list of messages", rollout.task)
        return
    for trajectory in rollout.trajectories:
        if trajectory.wording.form == "own":
            check.ledger.skip("messages", f"first messages: {OWN_WORDING}")
        elif trajectory.opened_with_task:
            _check_opening(check, rollout, trajectory, observed=bool(known.environment))


def _check_opening(check: Checker, rollout: AuditedRollout, trajectory: AuditedTrajectory, *, observed: bool) -> None:
    """Compare the first messages with the messages of the task.

    Args:
        observed: whether the run has an environment, whose `reset` may add text to the last message.
    """
    opening, task = list(trajectory.messages[: trajectory.num_opening]), rollout.task
    wording = trajectory.wording
    if wording.form == "react" and wording.names and opening and opening[0]["role"] == "system":
        # ReAct instructions come first, then the task's system message
        own = task[0].get("content") if task and task[0].get("role") == "system" else None
        if own is None or str(opening[0].get("content")).endswith(f"\n\n{own}"):
            opening = [*task[:1], *opening[1:]] if own is not None else opening[1:]
    if observed and opening and task and len(opening) == len(task) and _extends(opening[-1], task[-1]):
        opening = [*opening[:-1], task[-1]]
    if opening != task:
        column = f"trajectories[{trajectory.number}].messages"
        differ = [i for i, (one, other) in enumerate(zip(opening, task, strict=False)) if one != other]
        at = differ[0] if differ else min(len(opening), len(task))
        check.problem("messages", rollout.row, f"{column}[{at}]", task[at : at + 1], opening[at : at + 1])


def _extends(message: Mapping[str, Json], before: Mapping[str, Json]) -> bool:
    """Whether a message is `before` with more text at its end."""
    content, start = message.get("content"), before.get("content")
    if {**message, "content": start} != before:
        return False
    if isinstance(content, str):
        return isinstance(start, str) and content.startswith(start)
    if not (isinstance(content, list) and isinstance(start, list) and content[:-1] == start):
        return False
    return isinstance(content[-1], dict) and content[-1].keys() == {"type", "text"}


def check_calls(check: Checker, rollout: AuditedRollout, known: RunInfo) -> None:
    """Parse every turn again; compare it with its message and calls; check the calls' results, outcomes and order."""
    why = _why_not(rollout, known)
    names = ("calls", "answers", "outcomes")
    check_outcome_names(check, rollout)
    if why:
        for name in names:
            check.ledger.skip(name, why)
        return
    for name in names:
        check.ledger.count(name, 1)
    _check_addresses(check, rollout)
    request = known.request(check.step["agent_name"][rollout.row])
    reported: dict[int | None, bool] = {}  # trajectory -> whether the model read that no calls are left
    for trajectory in rollout.trajectories:
        limits = CallLimits(check, known, rollout, trajectory, reported.get(trajectory.parent, False))
        is_limited = trajectory.wording.form != "gateway"
        for number, turn in enumerate(trajectory.turns):
            made = rollout.calls_of(trajectory, number)
            _check_turn(check, rollout, trajectory, number, made)
            _check_answer(check, rollout, trajectory, without_request(turn, request), made)
            if is_limited:
                limits.check_turn(number, turn, made)
            else:
                ids = [entry.get("id") for entry in message_calls(turn)]
                check_given(check, rollout, trajectory, made, ids, turn.replies)
        reported[trajectory.number] = limits.reported


def _why_not(rollout: AuditedRollout, known: RunInfo) -> str:
    if rollout.kind is None:
        return rollout.why
    if known.tools is None:
        return "no saved tool schemas"
    if any(turn.text is None for trajectory in rollout.trajectories for turn in trajectory.turns):
        return NO_TOKENIZER
    for trajectory in rollout.trajectories:
        if not can_read(trajectory):
            return _UNKNOWN_FORMAT.format(trajectory.wording.call_format)
    return "" if all(trajectory.fits for trajectory in rollout.trajectories) else "messages and segments do not match"


def can_read(trajectory: AuditedTrajectory) -> bool:
    """Whether the audit has a parser for the trajectory's call format."""
    call_format = trajectory.wording.call_format
    return call_format is None or call_format in reading.READERS


def whole_text(trajectory: AuditedTrajectory, turn: Turn) -> str:
    """Return the turn's text. If the run separates thoughts, text that the prompt opened (`<think>`) comes first."""
    told_apart = "reasoning_content" in turn.message or trajectory.wording.call_format not in _OLDER_FORMATS
    return (trajectory.opened if told_apart else "") + (turn.text or "")


def read_turn(trajectory: AuditedTrajectory, turn: Turn) -> reading.ParsedTurn:
    """Parse a turn with the trajectory's call format."""
    call_format = trajectory.wording.call_format
    if call_format is None:
        return _read_plain(trajectory, turn)
    return reading.READERS[call_format](whole_text(trajectory, turn), trajectory.wording.tools)


def _read_plain(trajectory: AuditedTrajectory, turn: Turn) -> reading.ParsedTurn:
    """Parse the thoughts and the content of a turn, but not its calls."""
    read = reading.PLAIN_READERS.get(trajectory.wording.turn_format, reading.ParsedTurn)
    return read(whole_text(trajectory, turn))


def _check_turn(
    check: Checker, rollout: AuditedRollout, trajectory: AuditedTrajectory, number: int, made: Sequence[Call]
) -> None:
    turn = trajectory.turns[number]
    parsed = read_turn(trajectory, turn)
    last = number == len(trajectory.turns) - 1
    may_stop = rollout.own or rollout.stop in UNPARSED  # a conversation of a custom loop has its own stop reason
    ends_here = (last and may_stop) or trajectory.wording.form == "gateway"  # a program may continue after a cut turn
    may_be_cut = ends_here and (not turn.closed or trajectory.wording.call_format == "react")
    if may_be_cut and "tool_calls" not in turn.message:
        parsed = _read_plain(trajectory, turn)
    column = f"trajectories[{trajectory.number}].messages[{turn.position}]"
    _check_text(check, rollout.row, column, turn.message, parsed)
    calls = message_calls(turn)
    if not _agree(calls, parsed.calls):
        check.problem("calls", rollout.row, f"{column}.tool_calls", _listed(parsed.calls), calls)
    num_expected = len(parsed.calls) if turn.ran else 0
    if len(made) != num_expected and not (last and rollout.failed and not made):
        expected = f"{num_expected} calls of turn {number}"
        check.problem("calls", rollout.row, "tool_calls", expected, f"{len(made)}")
        return
    for call, one in zip(made, parsed.calls, strict=False):
        _check_call(check, rollout.row, call, one)


def _check_text(check: Checker, row: int, column: str, message: Mapping[str, Json], parsed: reading.ParsedTurn) -> None:
    """Compare content and thoughts of a message with the parsed turn."""
    content, thoughts = message.get("content"), message.get("reasoning_content")
    told_apart = reading.told_apart(parsed)
    if thoughts is None and (parsed.thoughts is None or parsed.together is not None):
        older = parsed.content if parsed.together is None else parsed.together
        if content != older and (content, "") != told_apart:
            check.problem("calls", row, f"{column}.content", older, content)
        return
    for name, found, one in zip(("content", "reasoning_content"), (content, thoughts or ""), told_apart, strict=True):
        if str(found).strip() != one:
            check.problem("calls", row, f"{column}.{name}", one, found)


def _agree(entries: Sequence[Json], calls: Sequence[reading.Call]) -> bool:
    if len(entries) != len(calls) or len({json.dumps(entry.get("id")) for entry in entries}) != len(entries):
        return False
    return all(map(_matches, entries, calls))


def message_calls(turn: Turn) -> list[Mapping[str, Json]]:
    """The calls of a message; a malformed entry becomes an empty dictionary."""
    entries = turn.message.get("tool_calls") or []
    return [entry if isinstance(entry, dict) else {} for entry in entries] if isinstance(entries, list) else [{}]


def _matches(entry: Mapping[str, Json], call: reading.Call) -> bool:
    function = entry.get("function")
    if not isinstance(function, dict) or entry.get("type") != "function" or function.get("name") != call.name:
        return False
    return _same_arguments(function.get("arguments"), call)


def _same_arguments(arguments: Json, call: reading.Call) -> bool:
    if call.arguments is not None:
        return bool(arguments == call.arguments)
    return bool(arguments in (call.text, _read(call.text)))


def _read(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _listed(calls: Sequence[reading.Call]) -> str:
    return ", ".join(f"{call.name}({call.text if call.arguments is None else call.arguments})" for call in calls)


def _check_call(check: Checker, row: int, call: Call, parsed: reading.Call) -> None:
    place = label(check, call)
    if call.name != parsed.name:
        check.problem("calls", row, f"{place}.name", parsed.name, call.name)
    same = _read(call.arguments) == parsed.arguments if parsed.arguments is not None else call.arguments == parsed.text
    if not same:
        expected = parsed.text if parsed.arguments is None else json.dumps(parsed.arguments)
        check.problem("calls", row, f"{place}.arguments", expected, call.arguments)
    if parsed.arguments is None and call.outcome not in ("format_error", "limit_error", "aborted"):
        check.problem("outcomes", row, f"{place}.outcome", "format_error: the call is malformed", call.outcome)


def _check_addresses(check: Checker, rollout: AuditedRollout) -> None:
    """Check that calls are in the order of their turns, and that the turn of each call exists."""
    turns = {
        (trajectory.number, trajectory.first_turn + number)
        for trajectory in rollout.trajectories
        for number in range(len(trajectory.turns))
    }
    for number, call in enumerate(rollout.calls):
        here = (call.trajectory, call.turn)
        before = (rollout.calls[number - 1].trajectory, rollout.calls[number - 1].turn) if number else here
        if here not in turns or here < before:
            trajectory_is_wrong = call.trajectory not in {trajectory.number for trajectory in rollout.trajectories}
            column = f"{label(check, call)}.{'trajectory' if trajectory_is_wrong else 'turn'}"
            check.problem("calls", rollout.row, column, "a turn of the model, in order", here)


def _check_answer(
    check: Checker, rollout: AuditedRollout, trajectory: AuditedTrajectory, turn: Turn, made: Sequence[Call]
) -> None:
    """Check the answer to a turn: the results of its calls, or a user message."""
    num_tokens = 0
    if turn.reply >= 0:
        num_tokens = int(check.step.items["trajectories.segments.token_ids"].lengths[turn.reply])
        author = check.step["trajectories.segments.author"][turn.reply]
        by_tools = bool(made) or any(message["role"] == "tool" for message in turn.replies)
        if author != (expected := "tool" if by_tools else "user"):
            row, column = check.step.place("trajectories.segments.author", turn.reply)
            check.problem("answers", row, column, expected, author)
    if made:
        _check_results(check, rollout, trajectory, turn, made)
        total, elsewhere = sum(call.num_tokens for call in made), turn.reply < 0 and bool(turn.replies)
        if (total != num_tokens and not elsewhere) or min(c.num_tokens for c in made) < 0:
            expected = f"{num_tokens} in total for the calls of the turn"
            check.problem("answers", rollout.row, f"{label(check, made[0])}.num_tokens", expected, total)
    elif trajectory.wording.form == "gateway":
        return
    elif turn.replies and [message["role"] for message in turn.replies] != ["user"]:
        check.problem("answers", rollout.row, "trajectories", "one user message after a turn", turn.replies)


def _check_results(
    check: Checker, rollout: AuditedRollout, trajectory: AuditedTrajectory, turn: Turn, made: Sequence[Call]
) -> None:
    expected: list[Json]
    if not turn.replies:
        return
    if trajectory.wording.form == "own":
        check.ledger.skip("answers", f"text of tool answers: {OWN_WORDING}")
        return
    replied, ids = turn.replies, [entry.get("id") for entry in message_calls(turn)]
    if trajectory.wording.form == "gateway":  # a program may leave calls unanswered, and put messages between answers
        replied = [
            message for message in turn.replies if message["role"] == "tool" and message.get("tool_call_id") in ids
        ]
        expected = [_tool_message(*each) for each in answered_calls(made, ids, replied)]
    elif trajectory.wording.form == "react":
        expected = [{"role": "user", "content": "\n".join(f"Observation: {c.result}" for c in made)}]
    else:
        expected = [_tool_message(call, name) for call, name in zip(made, ids, strict=False)]
    replies: list[Json] = [{**m, "content": text_content(m["content"])} if "content" in m else m for m in replied]
    if replies != expected:
        differ = [i for i, (one, other) in enumerate(zip(replies, expected, strict=False)) if one != other]
        at = differ[0] if differ else 0
        place = f"{label(check, made[min(at, len(made) - 1)])}.result"
        found = f"message {turn.position + 1 + at}: {replied[at : at + 1]}"
        check.problem("answers", rollout.row, place, found, expected[at : at + 1])


def _tool_message(call: Call, call_id: Json) -> Mapping[str, Json]:
    return {"role": "tool", "name": call.name, "tool_call_id": call_id, "content": call.result}
