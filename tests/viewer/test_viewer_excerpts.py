"""Prompt and answer of the visible rows."""

from __future__ import annotations

from dataclasses import replace

from viewer_runs import HOSTILE, group, rollout, write_run

from agentrl.types.rollout import Group, Outcome
from agentrl.types.trajectory import Trajectory
from agentrl.viewer.excerpts import MAX_CHARACTERS


def said(asked, **words) -> dict[tuple[object, ...], tuple[str, str]]:
    rows = asked.json("api/excerpts", **words)["rows"]
    return {(row["step"], row["uid"], row["number"]): (row["prompt"], row["answer"]) for row in rows}


def test_the_last_question_and_the_last_text_of_the_model_on_one_line(view, tmp_path):
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "example"},
        {"role": "user", "content": "how\n many?"},
    ]
    answered = rollout("it is\n\n7")
    of_task = group("a", answered, rollout("x" * 1000))
    calling = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}
    (trajectory,) = answered.trajectories
    called = replace(answered, trajectories=[Trajectory(trajectory.segments, [calling])])
    groups = [Group(replace(of_task.task, messages=messages), of_task.rollouts), group("b", called)]
    found = said(view(write_run(tmp_path, {1: groups})))
    assert found[1, "a", 0] == ("how many?", "it is 7")
    assert found[1, "a", 1] == ("how many?", "x" * MAX_CHARACTERS + "…")
    assert found[1, "b", 0] == ("?", 'add({"a":1})')


def test_excerpts_of_rows_from_several_files(view, tmp_path):
    steps = {step: [group(f"g{step}", *(rollout(f"{step}-{n}", reward=n) for n in range(3)))] for step in (1, 2, 3)}
    asked = view(write_run(tmp_path, steps))
    rows = asked.json("api/rows", sort="-reward", limit=4)["rows"]
    found = said(asked, sort="-reward", limit=4)
    assert found == {(row["step"], row["uid"], row["number"]): ("?", f"{row['step']}-{row['number']}") for row in rows}
    assert len(found) == 4


def test_hostile_text_and_missing_messages_are_text(view, tmp_path):
    bare = replace(rollout(), trajectories=[])
    groups = [group(HOSTILE, rollout(HOSTILE, calls=((HOSTILE, Outcome.OK),)), bare)]
    found = said(view(write_run(tmp_path, {1: groups})))
    assert found[1, HOSTILE, 0] == ("?", " ".join(HOSTILE.split()))
    assert found[1, HOSTILE, 1] == ("?", "")


def test_rows_of_a_deleted_file_have_no_text(view, tmp_path):
    asked = view(write_run(tmp_path, {step: [group(f"g{step}", rollout())] for step in (1, 2)}))
    (tmp_path / "trajectories/train/step-000002.parquet").write_bytes(b"nonsense")
    assert set(said(asked)) <= {(1, "g1", 0)}
