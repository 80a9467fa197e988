"""A small saved run with known lengths and times."""

from __future__ import annotations

import json
from pathlib import Path

from agentrl.store import TrajectoryStore
from agentrl.store.schema import CONFIG
from agentrl.types.rollout import Group, Outcome, Rollout, Stop, ToolCall
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

PROMPT, ANSWER, RESULT = 40, 60, 30
TOOL_S = 0.5
NO_CONFIG: dict[str, object] = {}


def segment(author: Author, count: int, first: int = 0) -> Segment:
    tokens = list(range(first, first + count))
    if author is not Author.MODEL:
        return Segment(author, tokens)
    return Segment(author, tokens, [-0.5] * count, [VersionSpan(0, count)])


def rollout(number: int, duration_s: float = TOOL_S) -> Rollout:
    """Prompt, answer, tool result, answer: 40 + 60 + 30 + 60 + number tokens."""
    parts = [
        segment(Author.PROMPT, PROMPT),
        segment(Author.MODEL, ANSWER, 100),
        segment(Author.TOOL, RESULT, 200),
        segment(Author.MODEL, ANSWER + number, 300),
    ]
    call = ToolCall("add", "{}", "1", Outcome.OK, duration_s, RESULT, 0.0, 0, 0, 0.1)
    return Rollout([Trajectory(parts)], Stop.FINISHED, rewards={"score": 1.0}, tool_calls=[call])


def saved_run(folder: Path, num_steps: int = 3, config: object = NO_CONFIG, **times: float) -> Path:
    """Save steps of 2 groups of 2 rollouts. `times` are the metrics `timing_s/*` of each step."""
    store = TrajectoryStore(folder / "trajectories/train", provenance={CONFIG: json.dumps(config)})
    for step in range(1, num_steps + 1):
        store.write(step, [Group(Task([], uid=f"{step}-{n}"), [rollout(0), rollout(8)]) for n in range(2)])
    rows = [
        {"step": step, **{f"timing_s/{name}": value for name, value in times.items()}} for step in range(num_steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
