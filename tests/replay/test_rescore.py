"""`rescore`: rewards get the same inputs as in training; one failing reward does not stop the others."""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest
from replayed_runs import CALCULATOR, refused, replayed, rewritten, stored, with_config

from agentrl.replay.base import Options, Replay, key_of
from agentrl.replay.rescore.mode import rescore
from agentrl.replay.rescore.scoring import MAX_CONCURRENT, score_all
from agentrl.replay.saved_run import open_saved
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory

REWARDS = """
def constant(solution_str):
    return 0.5

def length(solution_str):
    print("a reward may print")
    return float(len(solution_str))

def fails_on_odd(solution_str, extra_info):
    if extra_info["index"] % 2:
        raise ValueError("odd")
    return 1.0

def fails(solution_str):
    raise ValueError("always")

async def turns(extra_info):
    return {"score": extra_info["num_turns"], "calls": extra_info["num_tool_calls"]}

def for_trl(completions, ground_truth, **columns):
    return [float(len(completion)) for completion in completions]

def greedy(solution_str, extra_info):
    extra_info["turn_texts"].clear()
    extra_info.pop("stop")
    return 0.0

def hangs(solution_str, extra_info):
    import time
    time.sleep(1.5 if extra_info["index"] == 0 else 0)
    return 1.0

def scaled(solution_str, by):
    return float(by)
"""


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    file = tmp_path / "rewards.py"
    file.write_text(REWARDS)
    return file


def test_the_run_s_own_reward_is_shown_what_training_showed_it(saved_run, capsys, tmp_path):
    file = shutil.copy(saved_run.parent / "reward.py", tmp_path)
    results = [
        replayed(capsys, saved_run, "--split", split, "rescore", "--reward", f"{file}:compute_score")["results"][0]
        for split in ("train", "val")
    ]
    in_training = (saved_run.parent / "shown_in_training.jsonl").read_text().splitlines()
    assert sorted((tmp_path / "shown.jsonl").read_text().splitlines()) == sorted(in_training)
    assert len(in_training) == 2 * 16 + 2 * 4
    for result, num in zip(results, (32, 8), strict=True):
        own = result["values"]["rewards"][f"{file}:compute_score"]
        assert own["share_same"] == 1
        assert (own["num_scored"], own["num_failed"]) == (num, 0)
        assert (result["values"]["num_text_known"], result["values"]["num_text_differs"]) == (num, 0)
        rows = result["values"]["rollouts"]  # guards added their entries in training
        assert all(row["new"][f"{file}:compute_score"].items() <= row["saved"].items() for row in rows)


def test_new_rewards_are_listed_next_to_the_saved_score(saved_run, capsys, rewards):
    names = [f"{rewards}:{name}" for name in ("constant", "length", "turns", "for_trl")]
    document = replayed(capsys, saved_run, "rescore", *(word for name in names for word in ("--reward", name)))
    (result,) = document["results"]
    kept = stored(saved_run)
    saved = {key_of(row): row.rollout.reward for row in kept}
    turns = {key_of(row): row.rollout.trajectories[0].num_turns for row in kept}
    new = {
        name: {
            (row["step"], row["uid"], row["rollout"]): row["new"][name]["score"] for row in result["values"]["rollouts"]
        }
        for name in names
    }
    assert new[names[2]] == new[names[3]] == turns
    assert set(new[names[0]].values()) == {0.5}

    tasks = defaultdict(list)
    for row in kept:
        tasks[row.task.index].append(new[names[1]][key_of(row)] - saved[key_of(row)])
    difference = result["values"]["rewards"][names[1]]["new_less_saved"]["calculator"]
    assert difference["value"] == pytest.approx(fmean(map(fmean, tasks.values())))
    assert difference["num"] == len(tasks)
    assert difference["low"] < difference["value"] < difference["high"]
    assert result["values"]["rewards"][names[0]]["share_same"] == fmean(score == 0.5 for score in saved.values())
    assert result["values"]["saved"]["mean"]["calculator"]["value"] == pytest.approx(fmean(saved.values()))

    tables = {table["title"].partition(":")[0]: table for table in result["tables"]}
    largest = [row for row in tables["largest disagreements"]["rows"] if row[0] == "rewards.py:length"]
    by_size = sorted((abs(new[names[1]][key] - saved[key]) for key in saved), reverse=True)
    assert [abs(row[5] - row[4]) for row in largest] == by_size[:10]
    assert [row[:2] for row in tables["reward parts"]["rows"]] == [
        ["rewards.py:turns", "calls"],
        ["rewards.py:for_trl", "for_trl"],
    ]


def test_reward_that_mutates_its_input_does_not_affect_others(saved_run, capsys, rewards):
    after = ["--reward", f"{rewards}:greedy", "--reward", f"{rewards}:for_trl"]
    rows = replayed(capsys, saved_run, "rescore", *after)["results"][0]["values"]["rollouts"]
    assert min(row["new"][f"{rewards}:for_trl"]["score"] for row in rows) >= 1


def test_rows_with_failing_reward_are_listed_and_others_continue(saved_run, capsys, rewards):
    name = f"{rewards}:fails_on_odd"
    (result,) = replayed(capsys, saved_run, "rescore", "--reward", name)["results"]
    odd = [row for row in stored(saved_run) if row.task.index % 2]
    own = result["values"]["rewards"][name]
    assert (own["num_failed"], own["num_scored"]) == (len(odd), 32 - len(odd))
    assert f"{name} failed on {len(odd)} of them" in result["summary"]
    (table,) = [table for table in result["tables"] if table["title"] == "failed"]
    first = odd[0]
    assert table["rows"][0][2] == f"{first.step}/{first.task.uid}/{first.number}"
    assert "raised ValueError: odd" in table["rows"][0][3]
    assert sum(row[1] for row in table["rows"]) == len(odd)


def test_a_reward_that_always_fails_fails_the_command(saved_run, capsys, rewards):
    words = [saved_run, "rescore", "--reward", f"{rewards}:constant", "--reward", f"{rewards}:fails"]
    assert replayed(capsys, *words, status=1)["results"][0]["failed"]


def test_hanging_reward_is_stopped_at_its_timeout(saved_run, capsys, rewards):
    words = [saved_run, "--split", "val", "rescore", "--reward", f"{rewards}:hangs", "reward.timeout_s=0.2"]
    values = replayed(capsys, *words)["results"][0]["values"]
    failed = {row["uid"]: row["failed"] for row in values["rollouts"] if row["failed"]}
    assert list(failed) == ["val-0"]
    assert "took longer than 0.2 seconds" in failed["val-0"][f"{rewards}:hangs"]


def test_keyword_arguments_come_from_the_command_line(saved_run, capsys, rewards):
    name = f"{rewards}:scaled"
    words = [saved_run, "rescore", "--reward", name, "+reward.custom_reward_function.reward_kwargs={by: 3}"]
    rows = replayed(capsys, *words)["results"][0]["values"]["rollouts"]
    assert {row["new"][name]["score"] for row in rows} == {3}


def test_text_of_tools_is_shown_as_the_kept_configuration_says(saved_run, capsys, rewards, tmp_path):
    name = f"{rewards}:length"
    shorter, longer = (
        replayed(capsys, saved_run, "rescore", "--reward", name, f"reward.include_tool_text={value}")["results"][0]
        for value in ("false", "true")
    )
    assert shorter["values"]["num_text_differs"] == 0
    assert longer["values"]["num_text_differs"] > 0
    assert "differs from the text scored in training" in longer["summary"]


def test_built_in_reward_is_selected_by_name(saved_run, capsys):
    rows = replayed(capsys, saved_run, "rescore", "--reward", "exact_match")["results"][0]["values"]["rollouts"]
    assert all(row["new"]["exact_match"]["score"] in (0, 1) for row in rows)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "no reward: give --reward file.py:function, or one of auto, classification, code, "),
        (["--reward", "exact_match", "--reward", "exact_match"], "--reward exact_match is given twice"),
        (["--reward", "exact_mach"], "unknown reward 'exact_mach': did you mean 'exact_match'?"),
        (["--reward", "reward.py"], "there is no file 'reward.py'"),
        (["--reward", "gsm8k", "reward.timeout=1"], "unknown key 'reward.timeout': did you mean 'reward.timeout_s'?"),
    ],
)
def test_invalid_arguments_are_one_line(saved_run, capsys, words, line):
    assert refused(capsys, saved_run, "rescore", *words).startswith(line)


def test_code_named_in_the_run_is_never_executed(saved_run, capsys, tmp_path, monkeypatch):
    (tmp_path / "named_by_the_run.py").write_text("raise SystemExit('was run')")
    monkeypatch.syspath_prepend(tmp_path)
    dotted = rewritten(saved_run, tmp_path / "run", provenance=with_config(reward={"name": "named_by_the_run:reward"}))
    shutil.copytree(saved_run / "checkpoints", dotted / "checkpoints", symlinks=True)
    assert "if you trust it, add reward.name=named_by_the_run:reward" in refused(capsys, dotted, "rescore")
    custom = {"custom_reward_function": {"path": f"{tmp_path}/named_by_the_run.py"}}
    own = rewritten(saved_run, tmp_path / "own", provenance=with_config(reward=custom))
    shutil.copytree(saved_run / "checkpoints", own / "checkpoints", symlinks=True)
    assert "named_by_the_run.py:" in refused(capsys, own, "rescore")
    replayed(capsys, own, "rescore", "--reward", "exact_match")


@pytest.mark.parametrize("mode", ["rescore", "tools"])
def test_a_run_without_a_reward_names_the_needed_option(saved_run, capsys, tmp_path, mode):
    own = rewritten(saved_run, tmp_path, provenance=with_config(reward={"name": "none"}))
    line = refused(capsys, own, mode, f"model.path={saved_run.parent}/model")
    assert line.startswith("no reward: give --reward file.py:function, or one of auto, classification, code,")
    assert line.endswith("reward: reward.name=none)")
    refused(capsys, own, mode, f"model.path={saved_run.parent}/model", "reward.name=none")


def test_a_run_scored_by_a_built_in_reward_is_scored_by_it_again(saved_run, capsys, tmp_path):
    own = rewritten(saved_run, tmp_path, provenance=with_config(reward={"name": "exact_match"}))
    shutil.copytree(saved_run / "checkpoints", own / "checkpoints", symlinks=True)
    assert list(replayed(capsys, own, "rescore")["results"][0]["values"]["rewards"]) == ["exact_match"]


def test_imported_rollouts_are_scored_by_their_messages(capsys, tmp_path, rewards):
    asked = [{"role": "user", "content": "Add."}]
    said = [
        {"role": "assistant", "content": [{"type": "text", "text": "Let me "}, {"type": "text", "text": "see."}]},
        {"role": "tool", "content": "a long answer"},
        {"role": "assistant", "content": "Two."},
    ]
    rollout = Rollout([Trajectory(messages=[*asked, *said])], Stop.FINISHED, {"score": 1.0})
    store = TrajectoryStore(tmp_path / "trajectories/train", provenance={"imported_from": "messages"})
    store.write(0, [Group(Task(asked, "2", uid="a"), [rollout])])
    (result,) = replayed(capsys, tmp_path, "rescore", "--reward", f"{rewards}:length")["results"]
    assert result["values"]["rollouts"][0]["new"][f"{rewards}:length"]["score"] == len("Let me see.\nTwo.")
    assert "1 rollouts have no tokens" in result["summary"]
    assert result["values"]["num_text_known"] == 0
    words = [tmp_path, "rescore", "--reward", f"{rewards}:length", "reward.include_tool_text=true"]
    rows = replayed(capsys, *words)["results"][0]["values"]["rollouts"]
    assert rows[0]["new"][f"{rewards}:length"]["score"] == len("Let me see.\na long answer\nTwo.")


def test_rollouts_that_ended_in_an_error_are_not_scored(saved_run, tmp_path):
    def fail(rollout: Rollout) -> None:
        if rollout.seed % 2:
            rollout.stop, rollout.error = Stop.ERROR, "the loop raised"

    broken = rewritten(saved_run, tmp_path, fail)
    whole = [row for row in stored(broken) if row.rollout.stop is not Stop.ERROR]
    replay = Replay(
        open_saved(str(broken)), Options(rewards=["exact_match"], tokenizer=str(saved_run.parent / "model"))
    )
    assert rescore(replay).values["num_rollouts"] == len(whole) < 32
    assert list(replay.scores["exact_match"]) == [key_of(row) for row in whole]


def test_calculator_reward_agrees_with_python(saved_run, capsys):
    """Compares the script's answers, read from the text by hand, with the example's reward function."""
    name = f"{CALCULATOR}/reward.py:compute_score"
    (result,) = replayed(capsys, saved_run, "rescore", "--reward", name)["results"]
    new = {(row["step"], row["uid"], row["rollout"]): row["new"][name]["score"] for row in result["values"]["rollouts"]}
    for row in stored(saved_run):
        last = row.rollout.trajectories[0].messages[-1]
        right = last["role"] == "assistant" and last["content"].strip(" <") == f"The answer is {row.task.ground_truth}"
        assert new[key_of(row)] == float(right)


def test_calls_run_side_by_side_but_not_all_at_once(saved_run):
    running, most = 0, 0

    async def reward(*shown: object) -> dict[str, float]:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0)
        running -= 1
        return {"score": 0.0}

    rollouts = stored(saved_run) * 3
    scored = asyncio.run(score_all(rollouts, {"one": reward}, lambda token_ids: "", False))
    assert [row.key for row in scored] == [key_of(row) for row in rollouts]
    assert most == MAX_CONCURRENT < len(rollouts)


def test_damaged_file_is_a_one_line_error(saved_run, capsys, tmp_path):
    shutil.copytree(saved_run, tmp_path / "run", symlinks=True)
    file = tmp_path / "run/trajectories/train/step-000002.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    line = refused(capsys, tmp_path / "run", "rescore", "--reward", "exact_match")
    assert line.startswith(f"{file}: not a readable file of trajectories")
    assert len(line.splitlines()) == 1
