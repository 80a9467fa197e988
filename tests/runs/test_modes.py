"""`trainer.mode`: only validation, only rollouts, or only training on the stored rollouts of an earlier run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from agentrl.cli.main import main
from agentrl.store import StoredRollout, TrajectoryStore

ROOT = Path(__file__).parents[2]
REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return len(solution_str) % 7\n"
SMALL = [
    "data.train_max_samples=32",
    "data.val_max_samples=4",
    "data.train_batch_size=4",
    "trainer.test_freq=0",
    "trainer.logger=[jsonl]",
]


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # the experiment's paths are relative to ROOT


def run(task_folder: Path, folder: Path, *overrides: str) -> int:
    files = [f"data.{split}_files={task_folder}/{split}.jsonl" for split in ("train", "val")]
    reward = task_folder / "length.py"  # a random model's answers are never right, but differ in length
    reward.write_text(REWARD)
    model = [f"model.path={task_folder}/model", "rollout.n=2", "trainer.stop_when=null"]
    own = [
        *files,
        *model,
        *SMALL,
        f"reward.custom_reward_function.path={reward}",
        f"trainer.default_local_dir={folder}",
        "trainer.resume_mode=auto",
    ]
    return main(["train", "+experiment=calculator", *own, *overrides])


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def updates(folder: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k.startswith("actor/")} for row in rows(folder) if row["step"]]


def sign(value: float) -> int:
    return (value > 0) - (value < 0)


def rollouts(folder: Path, step: int) -> list[object]:
    """Tokens, log-probabilities and rewards of a step."""
    stored = TrajectoryStore(folder / "trajectories/train").groups(step)
    return [
        (group.uid, rollout.reward, [(list(t.token_ids), t.logprobs) for t in rollout.trajectories])
        for group in stored
        for rollout in group.rollouts
    ]


STEPS = ["data.val_files=[]", "trainer.total_training_steps=3", "actor.ppo_mini_batch_size=2"]


@pytest.fixture(scope="module")
def live(task_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert run(task_folder, folder, *STEPS) == 0
    return folder


@pytest.mark.slow
def test_training_on_stored_rollouts_makes_the_updates_of_the_run_that_stored_them(task_folder, live, tmp_path):
    elsewhere = ["rollout.multi_turn.function_tool_path=/not/there.py", "reward.custom_reward_function.path=/nor.py"]
    stored = ["trainer.mode=train_only", f"trainer.saved_rollouts={live}", "trainer.total_training_steps=null"]
    assert run(task_folder, tmp_path, *STEPS, *stored, *elsewhere) == 0
    assert updates(tmp_path) == updates(live)
    again, once = (load_file(folder / "checkpoints/latest/model.safetensors") for folder in (tmp_path, live))
    start = load_file(task_folder / "model/model.safetensors")
    assert all(again[name].equal(once[name]) for name in once)
    assert not all(once[name].equal(start[name]) for name in once)
    assert rows(tmp_path)[-1]["reward/mean"] == rows(live)[-1]["reward/mean"]
    assert not (tmp_path / "trajectories").exists()
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_training_on_stored_rollouts_resumes_and_validates(task_folder, live, tmp_path):
    stored = [*STEPS[1:], "trainer.mode=train_only", f"trainer.saved_rollouts={live}/trajectories"]
    for num_steps in (2, 3):
        schedule = ["actor.optim.total_updates=6", f"trainer.total_training_steps={num_steps}"]
        assert run(task_folder, tmp_path, *stored, *schedule) == 0
    assert updates(tmp_path) == updates(live)
    assert [row["step"] for row in rows(tmp_path) if "val/success" in row] == [0, 2, 3]
    assert [file.name for file in (tmp_path / "trajectories").iterdir()] == ["val"]


@pytest.mark.slow
def test_remax_needs_stored_greedy_rollouts(task_folder, live, tmp_path, capsys):
    stored = ["trainer.mode=train_only", f"trainer.saved_rollouts={live}", "algorithm.name=remax"]
    assert run(task_folder, tmp_path, *STEPS, *stored) == 2
    assert "it has no 'baseline'" in capsys.readouterr().err


@pytest.mark.slow
def test_rollout_only_uses_new_tasks_in_every_step(task_folder, live, tmp_path):
    for num_steps in (1, 3):  # the second command resumes after the first
        only = ["trainer.mode=rollout_only", f"trainer.total_training_steps={num_steps}"]
        assert run(task_folder, tmp_path, *only) == 0
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3]
    assert "reward/mean" in rows(tmp_path)[2]
    assert not any(name.startswith(("actor/", "val/")) for row in rows(tmp_path) for name in row)
    assert not (tmp_path / "checkpoints").exists()
    assert rollouts(tmp_path, 1) == rollouts(live, 1)
    tasks = [[uid for uid, *_ in rollouts(folder, 3)] for folder in (tmp_path, live)]
    assert tasks[0] == tasks[1]


@pytest.mark.slow
def test_val_only_equals_the_validation_before_training(task_folder, tmp_path, capsys):
    whole, only = tmp_path / "whole", tmp_path / "only"
    assert run(task_folder, only, "trainer.mode=val_only", "trainer.save_freq=1") == 0
    assert "report:" in capsys.readouterr().out
    assert run(task_folder, whole, "trainer.total_training_steps=1") == 0
    figures = [{k: v for k, v in rows(folder)[0].items() if "_s" not in k} for folder in (only, whole)]
    assert figures[0] == figures[1]
    assert len(rows(only)) == 1
    assert not (only / "checkpoints").exists()
    assert len(TrajectoryStore(only / "trajectories/val").groups(0)) == 4
    assert run(task_folder, only, "trainer.total_training_steps=1") == 0  # no metrics there to overwrite


@pytest.mark.slow
def test_step_is_stored_with_advantages_and_resume_drops_later_steps(task_folder, tmp_path):
    assert run(task_folder, tmp_path, "trainer.total_training_steps=2", "trainer.test_freq=2") == 0
    train, val = (TrajectoryStore(tmp_path / "trajectories" / split, split=split) for split in ("train", "val"))
    assert (train.steps, val.steps) == ([1, 2], [0, 2])
    stored = list(train.scan())
    assert len(stored) == 2 * 4 * 2
    assert {version for each in stored if each.step == 2 for version in each.rollout.policy_versions} == {1}
    by_task: dict[str, list[StoredRollout]] = {}
    for each in stored:
        by_task.setdefault(each.task.uid, []).append(each)
    for first, second in by_task.values():
        gain = first.rollout.reward - second.rollout.reward  # with two rollouts, the advantages are opposite
        assert [sign(max(each.advantages[0], key=abs)) for each in (first, second)] == [sign(gain), -sign(gain)]
    assert any(each.advantages[0][-1] for each in stored)
    assert all(each.advantages == [None] for each in val.scan())
    for store in (train, val):
        store.write(7, store.groups(2))  # as if a run was killed after its checkpoint
    assert run(task_folder, tmp_path, "trainer.total_training_steps=3", "trainer.test_freq=2") == 0
    assert (train.steps, val.steps) == ([1, 2, 3], [0, 2, 3])


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["trainer.mode=train_only"], "needs 'trainer.saved_rollouts'"),
        (
            ["trainer.mode=train_only", "trainer.saved_rollouts=/nowhere"],
            "'trainer.saved_rollouts': there is no '/nowhere'",
        ),
        (["trainer.saved_rollouts=x"], "'trainer.saved_rollouts' has no effect without 'trainer.mode=train_only'"),
        (["trainer.mode=val_only", "data.val_files=[]"], "'trainer.mode=val_only' needs 'data.val_files'"),
        (["trainer.mode=val_only", "trainer.val_before_train=false"], "remove 'trainer.val_before_train=false'"),
        (["trainer.mode=val_only", "trainer.save_best=val/success"], "'trainer.save_best' has no effect without"),
        (
            ["trainer.mode=rollout_only", "trainer.save_best=val/success"],
            "'trainer.save_best' has no effect without",
        ),
        (["trainer.mode=rollout_only", "data.train_files=[]"], "'data.train_files' must be given"),
        (["trainer.mode=validate"], "'val_only'"),
    ],
)
def test_unsupported_mode_options_are_one_line_errors(task_folder, tmp_path, capsys, overrides, complaint):
    assert run(task_folder, tmp_path, *overrides) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert complaint in said


def test_folder_of_another_mode_is_refused(task_folder, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"trainer": {"mode": "rollout_only"}}))
    assert run(task_folder, tmp_path) == 2
    assert "holds a run of trainer.mode=rollout_only" in capsys.readouterr().err


def test_rollouts_of_another_tokenizer_are_refused(task_folder, live, tmp_path, capsys):
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(task_folder / "model", tokenizer)
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text())
    names = vocabulary["model"]["vocab"]
    names["a"], names["b"] = names["b"], names["a"]
    (tokenizer / "tokenizer.json").write_text(json.dumps(vocabulary))
    stored = ["trainer.mode=train_only", f"trainer.saved_rollouts={live}", f"model.tokenizer_path={tokenizer}"]
    assert run(task_folder, tmp_path / "run", *STEPS, *stored) == 2
    assert f"'{live}/trajectories/train' were made with another tokenizer" in capsys.readouterr().err
