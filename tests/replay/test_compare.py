"""Compares two stores with known scores."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from replayed_runs import rewritten, with_config

from agentrl.errors import ConfigError, DataError
from agentrl.replay.base import Options, Replay, Result
from agentrl.replay.compare.first_difference import FirstDifference, first_difference
from agentrl.replay.compare.mode import compare
from agentrl.replay.rescore.mode import rescore
from agentrl.replay.saved_run import open_saved
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Group, Outcome, Rollout, Stop, ToolCall
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan


def rollout(score: float | None, *said: int, seed: int = 0, calls: Sequence[ToolCall] = (), **rest: object) -> Rollout:
    segments = [Segment(Author.PROMPT, [1, 2])]
    segments += [Segment(Author.MODEL, said, [-0.5] * len(said), [VersionSpan(0, len(said))])] if said else []
    rewards = {} if score is None else {"score": score}
    fields = {"stop": Stop.FINISHED, "rewards": rewards, "seed": seed, "tool_calls": list(calls), **rest}
    return Rollout([Trajectory(segments)], **fields)


def group(index: int, *rollouts: Rollout, source: str = "sums", prompt: str = "?") -> Group:
    task = Task([{"role": "user", "content": f"{prompt}{index}"}], data_source=source, index=index, uid=f"u{index}")
    return Group(task, list(rollouts))


def scores(index: int, *values: float | None, source: str = "sums") -> Group:
    return group(index, *(rollout(value, 3) for value in values), source=source)


def keep(folder: Path, groups: Sequence[Group], step: int = 0, **provenance: str) -> str:
    TrajectoryStore(folder / "trajectories/val", split="val", provenance=provenance).write(step, groups)
    return str(folder)


def compared(a: str, b: str | None, **options: object) -> Result:
    return compare(Replay(open_saved(a), Options(other=b, **options)))


def side(result: Result, table: str = "all") -> dict[str, dict[str, object]]:
    return result.values["sides"][table]


def test_scores_of_the_same_tasks_are_paired(tmp_path):
    a = keep(tmp_path / "a", [scores(0, 0, 1), scores(1, 0, 0), scores(2, 1, 1), scores(7, 1, 1)])
    b = keep(tmp_path / "b", [scores(2, 1, 1), scores(0, 1, 1), scores(1, 1, 0), scores(8, 0)], step=30)
    result = compared(a, b)
    assert result.values["tasks"] == {"matched": 3, "scored": 3, "only_a": 1, "only_b": 1}
    assert (result.values["only_a"], result.values["only_b"]) == ([["sums", 7]], [["sums", 8]])
    (line,) = result.values["scores"]
    assert [line[name] for name in ("source", "tasks", "better", "worse", "same", "p")] == ["all", 3, 2, 0, 1, 0.5]
    assert (line["a"], line["b"]) == pytest.approx((0.5, 5 / 6))
    difference = line["difference"]  # of 0.5, 0.5 and 0: Student's t of two degrees of freedom, 4.3027 / 6
    assert [difference[name] for name in ("value", "low", "high")] == pytest.approx(
        [1 / 3, -0.38378, 1.05045], abs=1e-4
    )
    assert result.summary.startswith("B - A = 0.3333 [-0.3838, 1.05] over 3 tasks")


def test_pass_at_k_uses_the_threshold_and_possible_k(tmp_path):
    a = keep(tmp_path / "a", [scores(0, 0.4, 0.6), scores(1, 0.6, 0.7)])
    b = keep(tmp_path / "b", [scores(0, 0.4, 0.4), scores(1, 0.6, 0.1)])
    overrides = {"model": {"path": "m"}, "reward": {"success_threshold": 0.5}}
    result = compared(a, b, ks=(1, 2, 4), overrides=overrides)
    rows = {name: (row["a"]["value"], row["b"]["value"]) for name, row in side(result).items() if row["a"]}
    assert rows["success (pass@1)"] == (0.75, 0.25)
    assert (rows["pass@2"], rows["pass^2"]) == ((1.0, 0.5), (0.5, 0.0))
    assert "pass@4" not in rows
    assert "Not available: pass@4, pass^4" in result.tables[1].note
    assert side(compared(a, b))["success (pass@1)"]["a"]["value"] == 0.0  # the default threshold is 1


def test_tasks_with_fewer_rollouts_and_unscored_rollouts_are_reported(tmp_path):
    a = keep(tmp_path / "a", [scores(0, 1, 1), scores(1, 1, None)])
    b = keep(tmp_path / "b", [scores(0, 1, 1), scores(1, 1, 1)])
    result = compared(a, b, ks=(2,))
    assert "Only over tasks with enough rollouts: pass@2, pass^2." in result.tables[1].note
    assert "1 rollouts that did not fail but have no score" in result.tables[0].note


def test_failed_rollouts_are_counted_only_as_failed(tmp_path):
    failed = rollout(0.2, 3, 4, 5, 6, infra_failed=True, error="the world")  # the failure says nothing about the policy
    a = keep(tmp_path / "a", [group(0, rollout(1, 3), failed), group(1, failed), scores(2, 0)])
    b = keep(tmp_path / "b", [scores(0, 1), scores(1, 1), scores(2, 0.5)])
    result = compared(a, b)
    assert result.values["tasks"] == {"matched": 3, "scored": 2, "only_a": 0, "only_b": 0}
    assert "Skipped 1 common tasks: no score on one side" in result.tables[0].note
    assert side(result)["score"]["a"]["value"] == 0.5
    assert side(result)["response tokens"]["a"]["value"] == 1.0
    ended = side(result, "all: how rollouts ended")
    assert ended == {"finished": {"a": 2, "b": 3}, "failed": {"a": 2, "b": 0}, "all": {"a": 4, "b": 3}}


def test_each_source_has_its_own_lines(tmp_path):
    a = keep(tmp_path / "a", [scores(0, 0), scores(1, 0), scores(0, 1, source="words")])
    b = keep(tmp_path / "b", [scores(0, 1), scores(1, 1), scores(0, 0, source="words")])
    result = compared(a, b)
    lines = [(line["source"], line["difference"]["value"]) for line in result.values["scores"]]
    assert lines == [("sums", 1.0), ("words", -1.0), ("all", pytest.approx(1 / 3))]
    assert {"sums", "words", "all"} <= result.values["sides"].keys()


def test_tools_turns_and_tokens_are_reported(tmp_path):
    calls = [ToolCall("add", "", "", Outcome.OK), ToolCall("add", "", "", Outcome.TIMEOUT)]
    invented = ToolCall("invented", "", "", Outcome.FORMAT_ERROR)
    a = keep(tmp_path / "a", [group(0, rollout(1, 3, 4, calls=calls)), group(1, rollout(1, 3))])
    b = keep(tmp_path / "b", [group(0, rollout(1, 3, calls=[invented])), group(1, rollout(1, 3, 4, 5))])
    rows = side(compared(a, b))
    assert [rows["tool calls"][name]["value"] for name in "ab"] == [1.0, 0.5]
    assert [rows["of them ok"][name]["value"] for name in "ab"] == [0.5, 0.0]
    assert [rows["response tokens"][name]["value"] for name in "ab"] == [1.5, 2.0]
    assert (rows["add: calls"]["a"]["value"], rows["add: ok"]["b"]) == (1.0, None)
    assert "invented: calls" not in rows


def test_the_prompt_is_part_of_what_a_task_is(tmp_path):
    a, b = keep(tmp_path / "a", [group(0, rollout(1, 3))]), keep(tmp_path / "b", [group(0, rollout(1, 3), prompt="!")])
    with pytest.raises(DataError, match=r"\(1 tasks\).*\(1\) have no common task: .* data_source, index and prompt"):
        compared(a, b)


def test_incomparable_stores_are_refused(tmp_path):
    a, unscored = keep(tmp_path / "a", [scores(0, 1)]), keep(tmp_path / "b", [scores(0, None)])
    with pytest.raises(DataError, match=r"have 1 common tasks, but none has a score on both sides"):
        compared(a, unscored)
    with pytest.raises(ConfigError, match="give a second run"):
        compared(a, None)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    with pytest.raises(DataError, match=r"is a model, not rollouts: .* `agentrl generate model.path="):
        compared(a, str(tmp_path / "model"))


def segments(*parts: tuple[Author, list[int]]) -> list[tuple[Author, list[int]]]:
    return [(Author.PROMPT, [1]), *parts]


MODEL, TOOL = Author.MODEL, Author.TOOL


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([(MODEL, [3, 4])], [(MODEL, [3, 4])], None),
        ([(MODEL, [3, 4])], [(MODEL, [3, 5])], FirstDifference(0, "model", 1)),
        ([(MODEL, [3, 4])], [(MODEL, [3, 4, 5])], FirstDifference(0, "model", 2)),
        (
            [(MODEL, [3]), (TOOL, [5]), (MODEL, [6])],
            [(MODEL, [3]), (TOOL, [5]), (MODEL, [7])],
            FirstDifference(1, "model", 0),
        ),
        ([(MODEL, [3]), (TOOL, [5, 5])], [(MODEL, [3]), (TOOL, [5, 6])], FirstDifference(1, "tool", 1)),
        ([(MODEL, [3])], [(MODEL, [3]), (TOOL, [5])], FirstDifference(1, "tool", 0)),
        ([], [(MODEL, [3])], FirstDifference(0, "model", 0)),
    ],
)
def test_rollouts_share_computation_up_to_the_first_different_token(ours, theirs, expected):
    assert first_difference(segments(*ours), segments(*theirs)) == expected
    assert first_difference(segments(*theirs), segments(*ours)) == expected


def test_only_rollouts_with_equal_seeds_are_shown_side_by_side(tmp_path):
    a = keep(tmp_path / "a", [group(0, rollout(1, 3, 4, seed=5), rollout(1, 3, seed=6), rollout(1, 9, seed=7))])
    b = keep(tmp_path / "b", [group(0, rollout(1, 3, 9, seed=5), rollout(1, 3, seed=6), rollout(1, 8, seed=8))])
    table = compared(a, b).tables[-1]
    assert table.rows == [[0, "model", 1, 1, 1, "0/u0/0"]]
    assert table.note.startswith("1 of 2 pairs of rollouts have exactly the same tokens")


def test_tokens_of_different_vocabularies_are_not_compared(tmp_path):
    a = keep(tmp_path / "a", [scores(0, 1)], tokenizer_sha256="one")
    b = keep(tmp_path / "b", [scores(0, 1)], tokenizer_sha256="two")
    assert "different tokenizers" in compared(a, b).tables[-1].note


def test_saved_success_threshold_is_used(tmp_path):
    kept = json.dumps({"reward": {"success_threshold": 0.25}})
    a, b = (keep(tmp_path / name, [scores(0, 0.3)], config=kept) for name in "ab")
    assert side(compared(a, b))["success (pass@1)"]["a"]["value"] == 1.0


def test_each_side_has_the_threshold_it_was_made_with(tmp_path):
    kept = [json.dumps({"reward": {"success_threshold": threshold}}) for threshold in (0.25, 0.5)]
    a, b = (keep(tmp_path / name, [scores(0, 0.3)], config=config) for name, config in zip("ab", kept, strict=True))
    result = compared(a, b)
    success = side(result)["success (pass@1)"]
    assert (success["a"]["value"], success["b"]["value"]) == (1.0, 0.0)
    assert result.values["success_thresholds"] == {"a": 0.25, "b": 0.5}
    assert result.tables[1].note.startswith("Success: a score of 0.25 or more in A, 0.5 or more in B.")


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
def test_both_sides_are_rescored(saved_run, tmp_path, before):
    (tmp_path / "reward.py").write_text("def constant(solution_str):\n    return 0.1375\n")
    name = f"{tmp_path}/reward.py:constant"
    replay = Replay(open_saved(str(saved_run)), Options(other=f"{saved_run}@2", rewards=[name]))
    if before:
        rescore(replay)
    result = compare(replay)
    (line,) = result.values["scores"]
    assert (line["a"], line["b"], line["same"]) == (0.1375, 0.1375, line["tasks"])
    assert result.values["rewards"] == [name]
    assert f"Both sides are rescored with {name}." in result.tables[0].note
    assert list(replay.scores) == [name] * before  # later modes use the results of earlier ones


def test_compare_scores_both_sides_with_the_given_reward(saved_run, tmp_path):
    sides = [
        str(rewritten(saved_run, tmp_path / name, provenance=with_config(reward={"name": name})))
        for name in ("exact_match", "gsm8k")
    ]
    for side in sides:
        shutil.copytree(saved_run / "checkpoints", f"{side}/checkpoints", symlinks=True)
    replay = Replay(open_saved(sides[0]), Options(other=sides[1]))
    rescore(replay)
    result = compare(replay)
    assert result.values["rewards"] == ["exact_match"]
    assert result.values["scores"][0]["same"] == result.values["tasks"]["matched"]
