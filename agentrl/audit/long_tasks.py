"""Check the links between conversations of a rollout: summaries, and the tasks and answers of sub-agents."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import AuditedRollout, AuditedTrajectory, Call, Turn, text_content
from agentrl.audit.outcomes import CUT_MARK, label
from agentrl.audit.reading.own_loops import Opening
from agentrl.audit.reading.run_info import Json, RunInfo

_CONTROL = re.compile(r"([<\[])(?=[|｜]|/?s>|/?INST\]|/?(?:start|end)_of_turn>|/?(?:bos|eos|pad)>)", re.IGNORECASE)
_SUMMARY = "\n\nSummary of your work so far:\n"


def check_links(check: Checker, rollout: AuditedRollout, known: RunInfo) -> None:
    """Check the prompts that a loop built from the model's text, and the results built from sub-agents' answers."""
    if not rollout.own or not all(trajectory.fits for trajectory in rollout.trajectories):
        return  # other checks report why
    name = check.step["agent_name"][rollout.row]
    if (request := known.request(name)) is not None:
        for trajectory in rollout.trajectories:
            _check_summary(check, rollout, trajectory, request)
    elif known.starts_agents(name):
        _check_agents(check, rollout, known)


def without_request(turn: Turn, request: Json) -> Turn:
    """Return the turn without the request for a summary at the end of its replies."""
    asked = request is not None and len(turn.replies) > 1 and turn.replies[-1] == request
    return replace(turn, replies=turn.replies[:-1]) if asked else turn


def _check_summary(check: Checker, rollout: AuditedRollout, trajectory: AuditedTrajectory, request: Json) -> None:
    """Check that a trajectory after a summary begins with the task and the summary (the parent's last turn)."""
    by_number = {each.number: each for each in rollout.trajectories}
    before = by_number.get(-1 if trajectory.parent is None else trajectory.parent)
    if before is None or trajectory.rendered or not before.turns:
        return
    root, last = trajectory, before.turns[-1]
    while root.parent is not None and root.parent in by_number and root.parent < root.number:
        root = by_number[root.parent]
    column = f"trajectories[{trajectory.number}].messages"
    if before.messages[last.position - 1] != request:
        check.problem("messages", rollout.row, column, "a summary that the loop requested", before.messages[-2:])
    summary = _SUMMARY + _escaped(str(last.message.get("content")).strip())
    first = root.messages[: root.num_opening]
    expected = [*first[:-1], _longer(first[-1], summary)]
    found = list(trajectory.messages[: trajectory.num_opening])
    if found != expected:
        check.problem("messages", rollout.row, column, expected[-1:], found[-1:])


def _longer(message: Mapping[str, Json], text: str) -> Mapping[str, Json]:
    content = message.get("content")
    return {
        **message,
        "content": [*content, {"type": "text", "text": text}]
        if isinstance(content, list)
        else f"{content or ''}{text}",
    }


def _escaped(text: str) -> str:
    return _CONTROL.sub(r"\1\\", text.replace("\0", "\N{REPLACEMENT CHARACTER}"))


def _check_agents(check: Checker, rollout: AuditedRollout, known: RunInfo) -> None:
    """Check that each sub-agent call started a sub-agent with the call's task and returned the sub-agent's answer."""
    started: dict[tuple[int | None, int | None], list[int]] = {}
    for operation in rollout.operations:
        opening = Opening.of(operation) if operation.kind == "messages" else None
        if opening is not None and opening.segment is not None:
            started.setdefault((opening.parent, opening.segment), []).append(operation.trajectory)
    name = known.get("rollout.multi_turn.sub_agent.name")
    for trajectory in rollout.trajectories:
        for number, turn in enumerate(trajectory.turns):
            calls = [each for each in rollout.calls_of(trajectory, number) if each.name == name and _ran(each)]
            agents = sorted(started.get((trajectory.number, turn.segment - trajectory.prompt), []))
            if len(agents) != len(calls) and not any(call.outcome == "aborted" for call in calls):
                column = f"trajectories[{trajectory.number}].messages[{turn.position}]"
                check.problem("calls", rollout.row, column, f"{len(calls)} sub-agents", len(agents))
            for call, agent in zip(calls, agents, strict=False):
                _check_agent(check, rollout, call, agent)


def _ran(call: Call) -> bool:
    return call.outcome not in ("format_error", "limit_error")


def _check_agent(check: Checker, rollout: AuditedRollout, call: Call, number: int) -> None:
    lines = _line(rollout.trajectories, number)
    if not lines:
        return
    first, last = lines[0], lines[-1]
    try:
        task = json.loads(call.arguments)["task"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return  # reported by the check of calls
    asked = first.messages[first.num_opening - 1].get("content")
    if asked != _escaped(str(task)):
        column = f"trajectories[{number}].messages[{first.num_opening - 1}]"
        check.problem("messages", rollout.row, column, task, asked)
    answer = str(text_content(last.messages[-1].get("content"))).strip()
    if call.outcome == "ok" and call.result != answer and CUT_MARK not in call.result:
        check.problem("answers", rollout.row, f"{label(check, call)}.result", answer, call.result)


def _line(trajectories: Sequence[AuditedTrajectory], number: int) -> list[AuditedTrajectory]:
    """Return trajectory `number`, and the trajectories that continue it (`rendered`)."""
    found: list[AuditedTrajectory] = []
    for trajectory in trajectories:
        numbers = {each.number for each in found}
        if trajectory.number == number or (trajectory.rendered and trajectory.parent in numbers):
            found.append(trajectory)
    return found
