"""Runs on two processes equal runs on one, survive the death of a process, and pass the audit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def command(task_folder: Path, out: Path, *overrides: str) -> list[str]:
    options = [f"model.path={task_folder}/model", f"data.train_files={task_folder}/train.jsonl", "data.val_files=[]"]
    options += [f"trainer.default_local_dir={out}", "trainer.total_training_steps=4", "data.train_batch_size=4"]
    options += ["trainer.val_before_train=false", "rollout.n=4", "trainer.stop_when=null", "trainer.save_freq=1"]
    options += ["actor.use_kl_loss=true", "algorithm.adv_estimator=reinforce_plus_plus_baseline"]
    return [sys.executable, "-m", "agentrl", "train", "+experiment=calculator", *options, *overrides]


def metrics(out: Path) -> dict[int, dict[str, float]]:
    rows = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row for row in rows if "actor/loss" in row}


def passes_audit(out: Path) -> bool:
    done = subprocess.run([sys.executable, "-m", "agentrl", "replay", str(out), "audit"], cwd=ROOT)
    return done.returncode == 0


def test_a_run_on_two_processes_is_the_run_on_one(task_folder, tmp_path):
    for name, size in (("one", 1), ("two", 2)):
        run = command(task_folder, tmp_path / name, f"trainer.n_gpus_per_node={size}")
        subprocess.run(run, cwd=ROOT, check=True)
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    for name in ("actor/loss", "actor/grad_norm", "actor/lr", "actor/num_tokens"):
        assert two[1][name] == pytest.approx(one[1][name], rel=1e-4, abs=1e-6), name
    assert two[4]["actor/rank_imbalance"] < 1.5
    assert passes_audit(tmp_path / "two")


def rank_1_of(launcher: int) -> int:
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    variables = {int(child): Path(f"/proc/{child}/environ").read_bytes().split(b"\0") for child in children}
    return next(child for child in variables if b"RANK=1" in variables[child])


@pytest.mark.parametrize("name", [signal.SIGKILL, signal.SIGSTOP], ids=lambda name: name.name)
def test_a_run_goes_on_by_itself_after_a_process_died_or_hung(task_folder, tmp_path, name):
    run = command(task_folder, tmp_path, "trainer.n_gpus_per_node=2", "trainer.max_restarts=1")
    with subprocess.Popen(run, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "checkpoints/latest").exists():
            assert process.poll() is None
            time.sleep(0.1)
        os.kill(rank_1_of(process.pid), name)
        _, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    assert re.search(r"rank 1 \(process \d+\) (was killed by SIGKILL|has shown no sign of life)", stderr)
    assert sorted(metrics(tmp_path)) == [1, 2, 3, 4]
    assert passes_audit(tmp_path)
