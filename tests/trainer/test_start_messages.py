"""Settings that a run ignores are reported in one line at the start; a summary is printed at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.cli.main import main

SCRIPT = "def reply(context):\n    return 'done'\n"
REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"


@pytest.fixture
def run(task_folder, tmp_path, capsys):
    """Runs `agentrl train` with overrides; returns its standard output."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "reward.py").write_text(REWARD)
    given = {
        "model.path": task_folder / "model",
        "data.train_files": task_folder / "train.jsonl",
        "data.train_max_samples": 4,
        "data.train_batch_size": 2,
        "rollout.n": 2,
        "rollout.engine": "scripted",
        "rollout.script_path": f"{tmp_path}/script.py:reply",
        "reward.custom_reward_function.path": tmp_path / "reward.py",
        "data.val_max_samples": 2,
        "trainer.default_local_dir": tmp_path / "run",
        "trainer.resume_mode": "auto",
        "trainer.logger": "[jsonl]",
    }

    def run(**overrides: object) -> list[str]:
        words = {**given, **{name if "." in name else f"trainer.{name}": value for name, value in overrides.items()}}
        assert main(["train", *(f"{key}={value}" for key, value in words.items())]) == 0
        return capsys.readouterr().out.splitlines()

    return run


def said(lines: list[str], word: str) -> list[str]:
    return [line for line in lines if word in line]


@pytest.mark.slow
def test_step_settings_beyond_the_end_are_reported(run, tmp_path: Path):
    lines = run(mode="rollout_only", total_training_steps=2, profile_steps="[1,7]")
    (line,) = said(lines, "profile")
    assert line == "trainer.profile_steps: the run has 2 steps, so step 7 is never profiled"

    stored = {"mode": "train_only", "saved_rollouts": tmp_path / "run", "default_local_dir": tmp_path / "again"}
    (line,) = said(run(**stored, total_training_steps=5), "total_training_steps")
    folder = tmp_path / "run/trajectories/train"
    assert line == f"trainer.total_training_steps=5, but '{folder}' has 2 steps: the run ends after these steps"

    schedule = {"total_training_steps": 2, "profile_steps": "[2]"}
    assert not said(run(**{**stored, "default_local_dir": tmp_path / "third"}, **schedule), "trainer.")


@pytest.mark.slow
def test_finished_run_is_reported_as_finished(run):
    run(mode="rollout_only", total_training_steps=1)
    assert said(run(mode="rollout_only", total_training_steps=2), "step 1") == ["resuming at step 1"]
    (line,) = said(run(mode="rollout_only", total_training_steps=2), "step 2")
    assert line.startswith("already finished at step 2: ")


@pytest.mark.slow
def test_held_out_figures_are_compared_by_their_steps(run, task_folder):
    more = {"val_before_train": "false", "test_freq": 1, "data.val_files": task_folder / "val.jsonl"}
    assert not said(run(**more, total_training_steps=1), "held-out")
    assert [line.strip() for line in said(run(**more, total_training_steps=3), "held-out")] == [
        "held-out, step 1 -> step 3"
    ]
