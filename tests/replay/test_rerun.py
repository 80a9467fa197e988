"""`tools` and `from-turn`: saved rollouts are re-run with their recorded tool answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from babbling import FORMAT, LOOP, babble_is_known, ended, train  # noqa: F401  # the first a fixture
from replayed_runs import refused, replayed, rewritten, with_config

from agentrl.replay.rerun import runner
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Rollout
from agentrl.types.trajectory import Author


@pytest.fixture(scope="module")
def babbled(task_folder, tmp_path_factory) -> Path:
    """A deterministic run of two steps, with a checkpoint per step and its code files beside it."""
    folder = tmp_path_factory.mktemp("babbled")
    train(task_folder, folder, folder / "run", users=False, save_freq=1)
    return folder


def code(folder: Path) -> list[str]:
    """The command-line settings that replay needs again."""
    return [
        f"rollout.multi_turn.format={FORMAT}",
        f"rollout.agent.agent_loop_config_path={folder}/loops.yaml",
        f"reward.custom_reward_function.path={folder}/reward.py",
    ]


def rollouts(folder: Path, step: int) -> dict[tuple[str, int], Rollout]:
    groups = TrajectoryStore(folder / "trajectories/train").groups(step)
    return {(group.uid, number): rollout for group in groups for number, rollout in enumerate(group.rollouts)}


def told(rollout: Rollout) -> list[object]:
    """Tokens, log-probabilities, rewards, tool answers and seed."""
    answers = [(call.result, call.outcome, call.turn, call.num_tokens) for call in rollout.tool_calls]
    return [[(t.token_ids, t.logprobs) for t in rollout.trajectories], rollout.rewards, answers, rollout.seed]


def test_same_policy_reproduces_rollouts_bitwise_without_running_tools(babbled, tmp_path, capsys):
    run = babbled / "run"
    policy = f"model.path={run}/checkpoints/step-1"
    (result,) = replayed(capsys, f"{run}@2", "tools", policy, *code(babbled), "--out", tmp_path)["results"]
    values = result["values"]
    assert (values["num_same"], values["num_unrecorded_calls"]) == (values["num_rollouts"], 0) == (16, 0)
    assert values["num_recorded_calls"] > 16
    again, saved = (rollouts(folder, 2) for folder in (tmp_path / "tools", run))
    assert {key: told(each) for key, each in again.items()} == {key: told(each) for key, each in saved.items()}


@pytest.mark.slow
def test_another_policy_diverges_and_unrecorded_calls_are_reported(babbled, tmp_path, capsys):
    run = shutil.copytree(babbled / "run", tmp_path / "run", symlinks=True)
    (result,) = replayed(capsys, f"{run}@2", "tools", *code(babbled), "--unrecorded", "stub")["results"]
    values = result["values"]
    assert values["num_same"] < values["num_rollouts"]
    assert values["num_unrecorded_calls"] > 0
    assert values["out"] == str(run / "replays/tools-1")
    parted = [each for each in values["rollouts"] if each["parted"]]
    saved, again = rollouts(run, 2), rollouts(run / "replays/tools-1", 2)
    for each in parted:
        _, uid, number = each["key"]
        place = each["parted"]
        ours, theirs = saved[uid, number].trajectories[0], again[uid, number].trajectories[0]
        turns = [i for i, segment in enumerate(ours.segments) if segment.author is Author.MODEL]
        segment = turns[place["turn"]] + (place["author"] == "tool")
        position = sum(map(len, ours.segments[:segment])) + place["token"]
        assert ours.token_ids[:position] == theirs.token_ids[:position]
        assert ours.token_ids[position : position + 1] != theirs.token_ids[position : position + 1]


@pytest.mark.slow
def test_unrecorded_call_fails_the_mode_without_a_traceback(babbled, tmp_path, capsys, caplog):
    words = [f"{babbled}/run@2", "tools", *code(babbled), "--out", tmp_path]
    (result,) = replayed(capsys, *words, status=1)["results"]
    assert result["failed"]
    assert result["values"]["num_unrecorded_calls"] > 0
    refusals = [record for record in caplog.records if "not recorded: " in record.getMessage()]
    assert refusals
    assert not any(record.exc_info for record in refusals)
    ended = [each for each in rollouts(tmp_path / "tools", 2).values() if each.infra_failed]
    assert ended
    assert all("not recorded: " in (each.error or "") for each in ended)


@pytest.mark.slow
def test_replayed_rollouts_store_their_origin(babbled, saved_run, tmp_path, capsys):
    policy = f"model.path={babbled}/run/checkpoints/step-1"
    replayed(capsys, f"{babbled}/run@2", "tools", policy, *code(babbled), "--out", tmp_path)
    made_with = TrajectoryStore(tmp_path / "tools/trajectories/train").provenance(2)
    assert made_with["replayed_from"] == f"tools of {babbled}/run@2"


def test_loops_that_may_keep_state_are_not_continued(babbled, tmp_path, capsys):
    said = refused(capsys, f"{babbled}/run@1", "from-turn", 1, *code(babbled), "--out", tmp_path)
    assert f"'{LOOP}' may have state" in said


@pytest.mark.parametrize("mode", [("tools",), ("from-turn", 0)])
def test_tasks_of_several_steps_are_refused(babbled, tmp_path, capsys, monkeypatch, mode):
    monkeypatch.setattr(runner, "has_steps", lambda task: True)
    said = refused(capsys, f"{babbled}/run@1", *mode, *code(babbled), "--out", tmp_path)
    assert "task folder of several steps" in said


@pytest.mark.slow
def test_each_rollout_is_continued_n_times(saved_run, tmp_path, capsys):
    words = [
        f"{saved_run}@2",
        "from-turn",
        1,
        "rollout.n=2",
        f"model.path={saved_run.parent}/model",
        "--reward",
        "exact_match",
    ]
    (result,) = replayed(capsys, *words, "--unrecorded", "stub", "--out", tmp_path, "rollout.max_num_seqs=16")[
        "results"
    ]
    saved = rollouts(saved_run, 2)
    groups = TrajectoryStore(tmp_path / "from-turn-1/trajectories/train").groups(2)
    reached = {key for key, each in saved.items() if each.trajectories[0].num_turns > 1}
    assert {(uid, int(number)) for uid, _, number in (group.uid.partition("/") for group in groups)} == reached
    for group in groups:
        uid, _, number = group.uid.partition("/")
        before = saved[uid, int(number)].trajectories[0]
        turns = [place for place, segment in enumerate(before.segments) if segment.author is Author.MODEL]
        kept = [list(segment.token_ids) for segment in before.segments[: turns[1]]]
        assert len(group.rollouts) == 2
        assert group.rollouts[0].seed != group.rollouts[1].seed
        for each in group.rollouts:
            segments = each.trajectories[0].segments
            assert [list(segment.token_ids) for segment in segments[: turns[1]]] == kept
            assert [s.author is Author.MODEL for s in segments[: turns[1] + 1]] == [False] * turns[1] + [True]
    new = tmp_path / "from-turn-1"
    assert TrajectoryStore(new / "trajectories/train").provenance(2)["replayed_from"] == f"from-turn 1 of {saved_run}@2"
    (audited,) = replayed(capsys, new, "audit", "--allow-unchecked")["results"]
    assert not any(invariant["num_problems"] for invariant in audited["values"].values())
    assert audited["values"]["messages"]["status"] == "passed"
    values = result["values"]
    assert len(values["rollouts"]) == len(reached)
    assert sum(values["left_out"].values()) == len(saved) - len(reached)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize(("said", "live"), [((), True), (("--unrecorded", "stub"), False)])
def test_named_tools_run_live_by_default(babbled, tmp_path, capsys, said, live):
    file = tmp_path / "tools.py"
    file.write_text("from babbling import blocks, waits\n")
    tools = f"rollout.multi_turn.function_tool_path={file}"
    ended.clear()
    words = [f"{babbled}/run@1", "from-turn", 0, tools, *code(babbled), "--out", tmp_path, *said]
    (result,) = replayed(capsys, *words)["results"]
    assert sum(len(each["unrecorded"]) for each in result["values"]["rollouts"]) > 0
    assert bool(ended) == live


def test_code_named_in_a_run_must_be_given_by_name(babbled, saved_run, capsys):
    said = refused(capsys, babbled / "run", "tools").splitlines()
    assert [line.rpartition("add ")[2].partition("=")[0] for line in said] == [
        "rollout.agent.agent_loop_config_path",
        "rollout.multi_turn.format",
        "reward.custom_reward_function.path",
    ]
    policy = f"model.path={saved_run.parent}/model"
    live = refused(capsys, saved_run, "tools", "--unrecorded", "live", "--reward", "exact_match", policy)
    assert "add rollout.multi_turn.function_tool_path=" in live
    assert live.endswith("examples/calculator/tool.py")


def test_a_row_that_names_a_loop_by_its_path_is_refused(babbled, tmp_path, capsys):
    given = [word for word in code(babbled) if "agent_loop_config_path" not in word]
    (tmp_path / "none.yaml").write_text(yaml.safe_dump([{"name": "other", "_target_": "nowhere.Loop"}]))
    said = refused(
        capsys, babbled / "run", "tools", *given, f"rollout.agent.agent_loop_config_path={tmp_path}/none.yaml"
    )
    assert f"names the agent loop '{LOOP}'" in said


def test_the_recording_of_another_vocabulary_is_refused(saved_run, tmp_path, capsys):
    rewritten(saved_run, tmp_path, provenance=lambda kept: {**kept, "tokenizer_sha256": "another"})
    words = [tmp_path, "tools", f"model.path={saved_run.parent}/model", "--reward", "exact_match"]
    assert "the rollouts of step 1 have another vocabulary" in refused(capsys, *words)


def test_rerun_needs_a_policy_if_none_or_a_script_was_saved(saved_run, tmp_path, capsys):
    rewritten(saved_run, tmp_path, provenance=with_config(rollout={}))
    assert "give the policy, model.path=" in refused(capsys, tmp_path, "tools", "--reward", "exact_match")
    assert "add rollout.script_path=" in refused(capsys, saved_run, "tools", "--reward", "exact_match")
