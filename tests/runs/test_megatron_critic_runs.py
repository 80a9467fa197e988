"""Runs of the Megatron backend with a critic, or that train a reward model, equal runs of the torch backend."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_megatron_runs import LAYOUTS
from test_reward_model_runs import ROWS
from test_several_devices import ROOT, command
from transformers import AutoModelForSequenceClassification

pytestmark = pytest.mark.megatron

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return sum(map(ord, solution_str)) % 7 / 7
"""
"""A model without training gets different rewards."""
MEGATRON = ["actor.backend=megatron", *LAYOUTS["tensor parallel"]]


def rows_of(run: Path) -> list[dict[str, float]]:
    return [row for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "actor/loss" in row]


def assert_first_steps_are_equal(found: Path, expected: Path, names: list[str]) -> None:
    (one, *_), (other, *_) = rows_of(found), rows_of(expected)
    for name in names:
        assert other[name] != 0, name
        assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6), name


def test_a_run_with_a_critic_is_that_of_the_torch_backend(task_folder, tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    options = [f"reward.custom_reward_function.path={tmp_path}/reward.py"]
    options += ["algorithm.adv_estimator=gae", "trainer.total_training_steps=1", "critic.optim.lr=1e-3"]
    for name, backend in (("torch", ["actor.backend=torch"]), ("megatron", MEGATRON)):
        run = command(task_folder, tmp_path / name, *options, *backend)
        subprocess.run(run, cwd=ROOT, check=True, timeout=500)
    names = ["actor/grad_norm", "critic/vf_loss", "critic/grad_norm"]
    assert_first_steps_are_equal(tmp_path / "megatron", tmp_path / "torch", names)
    saved = [tmp_path / name / "checkpoints/latest/critic" for name in ("torch", "megatron")]
    one, other = (AutoModelForSequenceClassification.from_pretrained(path).state_dict() for path in saved)
    assert one.keys() == other.keys()
    assert other["score.weight"].any()


@pytest.mark.nightly
def test_a_reward_model_is_that_of_the_torch_backend(task_folder, tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS["reward_pairs"])))
    options = ["algorithm.name=reward_pairs", f"model.path={task_folder}/model", f"data.train_files={file}"]
    options += ["data.train_batch_size=4", "trainer.total_training_steps=1", "trainer.logger=[jsonl]"]
    for name, backend in (("torch", ["actor.backend=torch"]), ("megatron", MEGATRON)):
        run = [sys.executable, "-m", "agentrl", "train", *options, f"trainer.default_local_dir={tmp_path / name}"]
        subprocess.run([*run, *backend], cwd=ROOT, check=True, timeout=500)
    assert_first_steps_are_equal(tmp_path / "megatron", tmp_path / "torch", ["actor/loss", "actor/grad_norm"])
