"""Imports and exports against verl, TRL and OpenEnv: we read the files they write, and they read ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.store import TrajectoryStore
from agentrl.store.exporters.pairs import pair_rows
from agentrl.store.exporters.selection import COLUMNS, Selection
from agentrl.store.exporters.tasks import task_rows
from agentrl.store.exporters.traces import trace_rows
from agentrl.store.exporters.writing import write_lines, write_table
from agentrl.store.importers.formats import guess_format, reader_of
from agentrl.store.importers.importing import import_rollouts
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

pytestmark = pytest.mark.slow

PROMPT = [{"role": "user", "content": "1+1?"}]
TOOL = {"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}


@pytest.fixture
def peer(run_peer: Callable[..., Any]) -> Callable[..., Any]:
    """Runs the peer script beside this file."""
    return lambda name, *arguments: run_peer(name, Path(__file__).with_name(f"{name}_peer.py"), *arguments)


def rollouts() -> Group:
    function = {"name": "calculator", "arguments": {"expression": "1+1"}}
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    good = [call, {"role": "tool", "content": "2"}, {"role": "assistant", "content": "The answer is 2"}]
    bad = [{"role": "assistant", "content": "The answer is 3"}]
    done = [
        Rollout([Trajectory([], [*PROMPT, *answer])], Stop.FINISHED, {"score": score})
        for answer, score in ((bad, 0.0), (good, 1.0))
    ]
    kwargs = {"calculator": {"create_kwargs": {"limit": 3}}}
    return Group(Task(PROMPT, "2", "sums", 4, "u", tools_kwargs=kwargs, extra_info={"level": "easy"}), done)


def test_trl_and_agentrl_read_each_others_data(peer: Callable[..., Any], task_folder: Path, tmp_path: Path) -> None:
    TrajectoryStore(tmp_path / "store").write(1, [rollouts()])
    siblings = list(TrajectoryStore(tmp_path / "store").scan(columns=COLUMNS))
    write_lines(tmp_path / "pairs.jsonl", pair_rows("best", 0.0)([siblings], Selection(tools=[TOOL])))
    said = peer("trl", task_folder / "model", tmp_path / "out", tmp_path / "pairs.jsonl")

    (row,) = said["pairs"]
    assert "1+1?" in row["prompt_ids"]
    assert said["tools"] == [TOOL]  # which this model's template does not render
    assert '"expression": "1+1"' in row["chosen_ids"]
    assert "The answer is 2" in row["chosen_ids"]
    assert "The answer is 3" in row["rejected_ids"]

    completions = tmp_path / "out/completions"
    assert guess_format(completions) == "trl"
    import_rollouts(completions, tmp_path / "imported", "trl", reader_of("trl", []))
    (first, second) = TrajectoryStore(tmp_path / "imported").groups(1)
    done = [rollout for group in (first, second) for rollout in group.rollouts]
    assert [len(first.rollouts), len(second.rollouts)] == [2, 2]
    scored = {(row["prompt"][0]["content"], row["said"]) for row in said["scored"]}
    assert {tuple(m["content"] for m in rollout.trajectories[0].messages) for rollout in done} == scored
    for rollout in done:
        length = len(rollout.trajectories[0].messages[-1]["content"])
        even = {"even": float(length % 2 == 0)} if length < 20 else {}
        assert rollout.rewards == {"length": float(length), **even, "score": length + sum(even.values())}


def test_verl_and_agentrl_read_each_others_data(peer: Callable[..., Any], task_folder: Path, tmp_path: Path) -> None:
    TrajectoryStore(tmp_path / "store").write(1, [rollouts()])
    siblings = list(TrajectoryStore(tmp_path / "store").scan(columns=COLUMNS))
    write_table(tmp_path / "tasks.parquet", task_rows([siblings], Selection()))
    (row,) = peer("verl", task_folder / "model", tmp_path / "out", tmp_path / "tasks.parquet")
    assert row["raw_prompt"] == PROMPT
    assert row["reward_model"] == {"style": "rule", "ground_truth": "2"}
    assert (row["data_source"], row["ability"], row["index"]) == ("sums", "sums", 4)
    assert row["tools_kwargs"] == {"calculator": {"create_kwargs": {"limit": 3}}}
    assert row["extra_info"]["level"] == "easy"

    dump = tmp_path / "out/12.jsonl"
    import_rollouts(dump, tmp_path / "imported", guess_format(dump), reader_of("verl", []))
    first, second = TrajectoryStore(tmp_path / "imported").groups(12)
    texts = [rollout.trajectories[0].messages[-1]["content"] for rollout in (*first.rollouts, *second.rollouts)]
    assert texts == ["2\n", "4", "3 é"]
    assert [rollout.rewards for rollout in first.rollouts] == [{"score": 1.0, "acc": 1.0}, {"score": 0.5, "acc": 1.0}]
    assert second.task.ground_truth == ["x", 1]
    assert first.task.extra_info["logged"] == [{"pred": "2", "request_id": "a"}, {"request_id": "c"}]


@pytest.mark.nightly
def test_openenv_and_agentrl_read_each_others_traces(peer: Callable[..., Any], tmp_path: Path) -> None:
    segments = [Segment(Author.PROMPT, [1, 2]), Segment(Author.MODEL, [3, 4], [-0.5, 1e-8], [VersionSpan(2, 2)], 0.7)]
    answered = [*PROMPT, {"role": "assistant", "content": "2"}]
    rollout = Rollout([Trajectory(segments, answered)], Stop.FINISHED, {"score": 1.0})
    TrajectoryStore(tmp_path / "store").write(1, [Group(Task(PROMPT, "2", "sums", 0, "u"), [rollout])])
    stored = list(TrajectoryStore(tmp_path / "store").scan())
    write_lines(tmp_path / "ours.jsonl", trace_rows([stored], Selection(tools=[TOOL])))
    (read,) = peer("openenv", tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl")
    (turn,) = read["turns"]
    assert (turn["prompt_token_ids"], turn["completion_token_ids"], turn["loss_mask"]) == ([1, 2], [3, 4], [0, 0, 1, 1])
    assert turn["per_token_logps"] == [-0.5, 0.0]
    assert turn["request"] == {"messages": PROMPT, "tools": [TOOL]}
    assert turn["metadata"]["agentrl"]["rollout"]["rewards"] == {"score": 1.0}

    assert guess_format(tmp_path / "theirs.jsonl") == "openenv"
    import_rollouts(tmp_path / "theirs.jsonl", tmp_path / "back", "openenv", reader_of("openenv", ()))
    whole, first = (each.rollout for each in TrajectoryStore(tmp_path / "back").scan())
    tokens = [list(trajectory.token_ids) for trajectory in whole.trajectories]
    assert tokens == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9, 7], [8, 3]]
    masks = [trajectory.loss_mask for trajectory in whole.trajectories]
    assert masks == [[0, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 1], [0, 0]]
    assert whole.trajectories[0].logprobs == [0, 0, -0.75, 0, 0, -1.5]
    assert whole.trajectories[0].temperatures[2] == 0.5
    assert (whole.rewards, first.rewards) == ({"score": 0.5}, {})
    assert list(first.trajectories[0].token_ids) == [1, 2, 3, 4]
