"""The notebook repr of rollouts is one line each, at any length."""

from __future__ import annotations

from agentrl.store import StoredRollout
from agentrl.types.rollout import Group, Outcome, Rollout, Stop, ToolCall
from agentrl.types.sample import Sample
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan
from agentrl.utils.short_repr import short

LONG = "a question\nof lines " * 400


def test_every_repr_is_one_short_line():
    segments = [
        Segment(Author.PROMPT, [1] * 5000),
        Segment(Author.MODEL, [2] * 900, [-1.0] * 900, [VersionSpan(3, 900)]),
    ]
    trajectory = Trajectory(segments)
    call = ToolCall("search" * 20, LONG, LONG, Outcome.OK)
    rollout = Rollout([trajectory] * 2, Stop.MAX_RESPONSE_TOKENS, {"score": 1 / 3}, tool_calls=[call], error=LONG)
    task = Task([{"role": "user", "content": LONG}], data_source=LONG, uid=LONG)
    sample = Sample([1] * 900, [0, 1] * 450, [1.0] * 900, [0.5] * 900, rollout_id="u/0")
    stored = StoredRollout(12, "train", 3, task, rollout, [None, None])
    group = Group(task, [rollout, rollout])
    values = [
        *segments,
        trajectory,
        call,
        rollout,
        task,
        sample,
        stored,
        group,
        Group(task, []),
        Rollout([], Stop.ERROR),
    ]
    assert [repr(value) for value in values if len(repr(value)) >= 120 or "\n" in repr(value)] == []
    assert repr(trajectory) == "Trajectory(1 turn, 5,900 tokens, 900 trained tokens)"
    assert repr(group).endswith(", 2 rollouts, rewards 0.333333 to 0.333333)")
    assert repr(Segment(Author.TOOL, [1])) == "Segment(tool, 1 token)"


def test_messages_of_parts_and_none_have_a_repr_too():
    parts = [{"type": "text", "text": LONG}]
    assert len(repr(Task([{"role": "user", "content": parts}]))) < 120
    assert repr(Task([])) == "Task(row 0 of 'unknown', uid '', '')"
    assert short("x" * 40, 10) == "'xxxxxxxxx…'"
