"""Check messages against segments, parse the model's text again, and check calls, results and outcomes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from agentrl.audit import calls as reading
from agentrl.audit.checks import Checker
from agentrl.audit.conversation import (
    NO_SPEECH,
    UNPARSED,
    AuditedRollout,
    AuditedTrajectory,
    Call,
    Turn,
    are_messages,
    spoken,
)
from agentrl.audit.outcomes import Limited, check_outcome_names, label
from agentrl.audit.reading.run_info import Json, RunInfo

_UNKNOWN_FORMAT = "calls are written in format '{}'"


def check_messages(check: Checker, talked: AuditedRollout) -> None:
    """Check that the messages start with the task's and then contain one message per turn."""
    check.ledger.look("messages", 1)
    for talk in talked.talks:
        column = f"trajectories[{talk.number}].messages"
        if talked.kind is None and talk.prompt < 0:  # imported from another framework; agentrl always saves tokens
            check.ledger.skip("messages", "whether they are the segments': there are no tokens")
        elif not talk.fits:
            turns = sum(message["role"] == "assistant" for message in talk.messages[talk.num_opening :])
            expected = "a message for each turn and each answer, in the order of the segments"
            check.problem("messages", talked.row, column, expected, f"{turns} turns in {len(talk.messages)} messages")
        for position, message in enumerate(talk.messages):
            if message["role"] not in ("system", "developer", "user", "assistant", "tool"):
                check.problem("messages", talked.row, f"{column}[{position}].role", "a role of a chat", message["role"])
    if talked.kind is None:
        check.ledger.skip("messages", f"how they begin: {talked.why}")
        return
    if len(talked.talks) != 1 and not talked.failed and talked.stop != "deadline":
        check.problem("messages", talked.row, "trajectories", "one trajectory", f"{len(talked.talks)}")
    if not are_messages(talked.task):
        check.problem("messages", talked.row, "messages", "a list of messages", talked.task)
        return
    for talk in talked.talks:
        _check_opening(check, talked, talk)


def _check_opening(check: Checker, talked: AuditedRollout, talk: AuditedTrajectory) -> None:
    opening, task = list(talk.messages[: talk.num_opening]), talked.task
    if talked.kind == "react" and talked.options.tools and opening and opening[0]["role"] == "system":
        # ReAct instructions come first, then the task's own system message
        own = task[0].get("content") if task and task[0].get("role") == "system" else None
        if own is None or str(opening[0].get("content")).endswith(f"\n\n{own}"):
            opening = [*task[:1], *opening[1:]] if own is not None else opening[1:]
    if opening != task:
        column = f"trajectories[{talk.number}].messages"
        differ = [i for i, (one, other) in enumerate(zip(opening, task, strict=False)) if one != other]
        at = differ[0] if differ else min(len(opening), len(task))
        check.problem("messages", talked.row, f"{column}[{at}]", task[at : at + 1], opening[at : at + 1])


def check_calls(check: Checker, talked: AuditedRollout, known: RunInfo) -> None:
    """Parse every turn again and compare with its message and calls; check the calls' results, outcomes and order."""
    why = _why_not(talked, known)
    names = ("calls", "answers", "outcomes")
    check_outcome_names(check, talked)
    if why:
        for name in names:
            check.ledger.skip(name, why)
        return
    for name in names:
        check.ledger.look(name, 1)
    _check_addresses(check, talked)
    for talk in talked.talks:
        limited = Limited(check, known, talked)
        for number, turn in enumerate(talk.turns):
            made = talked.calls_of(talk.number, number)
            _check_turn(check, talked, talk, number, made)
            _check_answer(check, talked, turn, made)
            limited.check_turn(number, turn, made)


def _why_not(talked: AuditedRollout, known: RunInfo) -> str:
    if talked.kind is None:
        return talked.why
    if known.tools is None:
        return "the tools were not kept"
    if any(turn.text is None for talk in talked.talks for turn in talk.turns):
        return NO_SPEECH
    if not can_read(talked):
        return _UNKNOWN_FORMAT.format(talked.options.call_format)
    return "" if all(talk.fits for talk in talked.talks) else "messages and segments do not fit together"


def can_read(talked: AuditedRollout) -> bool:
    """Whether the audit has a parser for the rollout's call format."""
    return talked.kind != "tool" or not talked.options.tools or talked.options.call_format in reading.READERS


def read_turn(talked: AuditedRollout, text: str) -> reading.Said:
    """Parse the text of a turn with the row's call format."""
    if talked.kind == "single" or not talked.options.tools:
        return reading.Said(text)
    return reading.READERS["react" if talked.kind == "react" else talked.options.call_format](text)


def _check_turn(
    check: Checker, talked: AuditedRollout, talk: AuditedTrajectory, number: int, made: Sequence[Call]
) -> None:
    turn = talk.turns[number]
    text = turn.text or ""
    said = read_turn(talked, text)
    last = number == len(talk.turns) - 1
    may_be_cut = last and talked.stop in UNPARSED and (not turn.closed or talked.kind == "react")
    if may_be_cut and "tool_calls" not in turn.message:
        said = reading.Said(text)
    column = f"trajectories[{talk.number}].messages[{turn.position}]"
    if turn.message.get("content") != said.content:
        check.problem("calls", talked.row, f"{column}.content", said.content, turn.message.get("content"))
    told = told_calls(turn)
    if not _agree(told, said.calls):
        check.problem("calls", talked.row, f"{column}.tool_calls", _listed(said.calls), told)
    if len(made) != len(said.calls) and not (last and talked.failed and not made):
        expected = f"{len(said.calls)} calls of turn {number}"
        check.problem("calls", talked.row, "tool_calls", expected, f"{len(made)}")
        return
    for call, one in zip(made, said.calls, strict=False):
        _check_call(check, talked.row, call, one)


def _agree(told: Sequence[Json], calls: Sequence[reading.Call]) -> bool:
    if len(told) != len(calls) or len({json.dumps(entry.get("id")) for entry in told}) != len(told):
        return False
    return all(map(_says, told, calls))


def told_calls(turn: Turn) -> list[Mapping[str, Json]]:
    """The calls of a message; a malformed entry becomes an empty dictionary."""
    told = turn.message.get("tool_calls") or []
    return [entry if isinstance(entry, dict) else {} for entry in told] if isinstance(told, list) else [{}]


def _says(entry: Mapping[str, Json], call: reading.Call) -> bool:
    function = entry.get("function")
    if not isinstance(function, dict) or entry.get("type") != "function" or function.get("name") != call.name:
        return False
    return _same_arguments(function.get("arguments"), call)


def _same_arguments(told: Json, call: reading.Call) -> bool:
    if call.arguments is not None:
        return bool(told == call.arguments)
    return bool(told in (call.text, _read(call.text)))


def _read(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _listed(calls: Sequence[reading.Call]) -> str:
    return ", ".join(f"{call.name}({call.text if call.arguments is None else call.arguments})" for call in calls)


def _check_call(check: Checker, row: int, call: Call, said: reading.Call) -> None:
    place = label(check, call)
    if call.name != said.name:
        check.problem("calls", row, f"{place}.name", said.name, call.name)
    same = _read(call.arguments) == said.arguments if said.arguments is not None else call.arguments == said.text
    if not same:
        expected = said.text if said.arguments is None else json.dumps(said.arguments)
        check.problem("calls", row, f"{place}.arguments", expected, call.arguments)
    if said.arguments is None and call.outcome not in ("format_error", "limit_error", "aborted"):
        check.problem("outcomes", row, f"{place}.outcome", "format_error, the call is malformed", call.outcome)


def _check_addresses(check: Checker, talked: AuditedRollout) -> None:
    """Check that calls are in the order of their turns, and that each turn exists."""
    turns = {(talk.number, number) for talk in talked.talks for number in range(len(talk.turns))}
    for number, call in enumerate(talked.calls):
        here = (call.trajectory, call.turn)
        before = (talked.calls[number - 1].trajectory, talked.calls[number - 1].turn) if number else here
        if here not in turns or here < before:
            trajectory_is_wrong = call.trajectory not in {talk.number for talk in talked.talks}
            column = f"{label(check, call)}.{'trajectory' if trajectory_is_wrong else 'turn'}"
            check.problem("calls", talked.row, column, "a turn of the model, in order", here)


def _check_answer(check: Checker, talked: AuditedRollout, turn: Turn, made: Sequence[Call]) -> None:
    """Check the answer to a turn: the results of its calls, or a user message."""
    num_tokens = 0
    if turn.reply >= 0:
        num_tokens = int(check.step.items["trajectories.segments.token_ids"].lengths[turn.reply])
        author = check.step["trajectories.segments.author"][turn.reply]
        if author != (expected := "tool" if made else "user"):
            row, column = check.step.place("trajectories.segments.author", turn.reply)
            check.problem("answers", row, column, expected, author)
    if made:
        _check_results(check, talked, turn, made)
        if (total := sum(call.num_tokens for call in made)) != num_tokens or min(c.num_tokens for c in made) < 0:
            expected = f"{num_tokens} for the turn's calls together"
            check.problem("answers", talked.row, f"{label(check, made[0])}.num_tokens", expected, total)
    elif turn.replies and [message["role"] for message in turn.replies] != ["user"]:
        check.problem("answers", talked.row, "trajectories", "one user message after a turn", turn.replies)


def _check_results(check: Checker, talked: AuditedRollout, turn: Turn, made: Sequence[Call]) -> None:
    if not turn.replies:
        return
    if talked.kind == "react":
        expected: list[Json] = [{"role": "user", "content": "\n".join(f"Observation: {c.result}" for c in made)}]
    else:
        ids = [entry.get("id") for entry in told_calls(turn)]
        expected = [_tool_message(call, name) for call, name in zip(made, ids, strict=False)]
    replies: list[Json] = [{**m, "content": spoken(m["content"])} if "content" in m else m for m in turn.replies]
    if replies != expected:
        differ = [i for i, (one, other) in enumerate(zip(replies, expected, strict=False)) if one != other]
        at = differ[0] if differ else 0
        place = f"{label(check, made[min(at, len(made) - 1)])}.result"
        found = f"message {turn.position + 1 + at}, {turn.replies[at : at + 1]}"
        check.problem("answers", talked.row, place, found, expected[at : at + 1])


def _tool_message(call: Call, call_id: Json) -> Mapping[str, Json]:
    return {"role": "tool", "name": call.name, "tool_call_id": call_id, "content": call.result}
