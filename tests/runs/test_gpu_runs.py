"""Quickstart training steps on a CUDA GPU: they learn, and engine and backend agree on the sampled tokens."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from agentrl.cli.main import main

ROOT = Path(__file__).parents[2]
OFFLOAD = ["actor.param_offload=true", "actor.optimizer_offload=true", "ref.param_offload=true"]
pytestmark = pytest.mark.gpu


def steps(task_folder: Path, folder: Path, *overrides: str) -> list[dict[str, float]]:
    options = [
        f"model.path={task_folder}/model",
        f"data.train_files={task_folder}/train.jsonl",
        f"data.val_files={task_folder}/val.jsonl",
        "data.val_max_samples=8",
        "data.train_batch_size=4",
        "rollout.n=2",
        "trainer.stop_when=null",
        "trainer.total_training_steps=3",
        "trainer.logger=[jsonl]",
        "actor.use_kl_loss=true",
        "actor.entropy_coeff=0.01",
        f"trainer.default_local_dir={folder}",
    ]
    devices = ["actor.device=cuda", "rollout.device=cuda"]
    assert main(["train", "+experiment=calculator", *options, *devices, *overrides]) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["step"]]


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # the experiments' paths are relative to ROOT


@pytest.mark.parametrize(
    "overrides",
    [[], OFFLOAD, ["model.lora_rank=8"], ["model.enable_gradient_checkpointing=true"], ["actor.autocast=bfloat16"]],
    ids=["plain", "offload", "lora", "checkpointing", "bfloat16"],
)
def test_gpu_run_trains_a_few_steps(task_folder, tmp_path, overrides):
    for row in steps(task_folder, tmp_path, *overrides):
        assert math.isfinite(row["actor/loss"])
        assert row["actor/skipped_updates"] == 0
        assert row["actor/grad_norm"] > 0
        # the first update is on-policy, so the ratio shows only the engine-backend difference
        assert abs(row["actor/ppo_kl"]) < (0.05 if "actor.autocast=bfloat16" in overrides else 1e-3)


def test_offloading_changes_no_bit(task_folder, tmp_path):
    plain, offloaded = steps(task_folder, tmp_path / "a"), steps(task_folder, tmp_path / "b", *OFFLOAD)
    kept = [key for key in plain[0] if key.startswith(("actor/", "reward/", "val/")) and "_s" not in key]
    assert [[row[key] for key in kept] for row in plain] == [[row[key] for key in kept] for row in offloaded]
