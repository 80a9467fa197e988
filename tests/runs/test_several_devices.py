"""Runs on two processes equal runs on one, survive the death of a process, and pass the audit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
from sglang_server import require_sglang
from warm_agentrl import AGENTRL, agentrl

ROOT = Path(__file__).parents[2]
MOST_APART = 1e-4
"""Log-probabilities of the same weights in float32, by server and trainer."""
pytestmark = [pytest.mark.slow, pytest.mark.minutes]


def command(task_folder: Path, out: Path, *overrides: str) -> list[str]:
    options = [f"model.path={task_folder}/model", f"data.train_files={task_folder}/train.jsonl", "data.val_files=[]"]
    options += [f"trainer.default_local_dir={out}", "trainer.total_training_steps=4", "data.train_batch_size=4"]
    options += ["trainer.val_before_train=false", "rollout.n=4", "trainer.stop_when=null", "trainer.save_freq=1"]
    options += ["actor.use_kl_loss=true", "algorithm.adv_estimator=reinforce_plus_plus_baseline"]
    options += ["data.train_max_samples=64"]  # the length of every prompt is computed at the start
    return [*agentrl(), "train", "+experiment=calculator", *options, *overrides]


def metrics(out: Path) -> dict[int, dict[str, float]]:
    rows = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row for row in rows if "actor/loss" in row}


def passes_audit(out: Path) -> bool:
    done = subprocess.run([*agentrl(), "replay", str(out), "audit"], cwd=ROOT)
    return done.returncode == 0


def test_a_run_on_two_processes_is_the_run_on_one(task_folder, tmp_path):
    for name, size, start in (("one", 1, agentrl()), ("two", 2, AGENTRL)):
        options = [f"trainer.n_gpus_per_node={size}", "trainer.profile_steps=[2]"]
        run = command(task_folder, tmp_path / name, *options)
        done = subprocess.run([*start, *run[len(agentrl()) :]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    for name in ("actor/loss", "actor/grad_norm", "actor/lr", "actor/num_tokens"):
        assert two[1][name] == pytest.approx(one[1][name], rel=1e-4, abs=1e-6), name
    assert two[4]["actor/rank_imbalance"] < 1.5
    assert sorted(file.name for file in (tmp_path / "two/profile").iterdir()) == ["step-2-rank-1.json", "step-2.json"]
    traced = json.loads((tmp_path / "two/profile/step-2-rank-1.json").read_text())["traceEvents"]
    assert any("FSDP" in each.get("name", "") for each in traced)
    assert passes_audit(tmp_path / "two")


@pytest.mark.sglang
@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [[], ["model.lora_rank=4"]], ids=["all weights", "lora"])
def test_a_server_samples_for_two_processes(task_folder, tmp_path, options):
    """After each publication the server's log-probabilities are those of the sharded policy."""
    require_sglang()
    run = command(task_folder, tmp_path, "trainer.n_gpus_per_node=2", "rollout.engine=sglang", "rollout.dtype=float32")
    subprocess.run([*run, "trainer.total_training_steps=2", *options], cwd=ROOT, check=True, timeout=500)
    steps = metrics(tmp_path)
    assert sorted(steps) == [1, 2]
    assert max(row["publish/probe_max_diff"] for row in steps.values()) < MOST_APART
    assert passes_audit(tmp_path)


def steps_of(out: Path) -> dict[int, dict[str, float]]:
    """Metrics of the updates, which a resumed run repeats bit for bit."""
    names = ("actor/loss", "actor/grad_norm", "actor/num_tokens", "actor/lr")
    return {step: {name: row[name] for name in names} for step, row in metrics(out).items()}


SMALL = ("trainer.n_gpus_per_node=2", "data.train_batch_size=2", "rollout.n=2", "actor.entropy_coeff=0.01")
PHASES = ("1:forward", "0:backward", "1:publish", "0:save", "1:save")  # each rank writes its own files
DEATHS = {
    "killed": [f"{phase}:SIGKILL" for phase in PHASES],
    "killed while files are written in the background": ["0:save:SIGKILL", "1:save:SIGKILL"],
    "stopped": ["1:forward:SIGSTOP"],
}


def run_uninterrupted(task_folder: Path, out: Path, num_steps: int, *overrides: str) -> dict[int, dict[str, float]]:
    length = [f"trainer.total_training_steps={num_steps}", "actor.optim.total_updates=10"]
    subprocess.run(command(task_folder, out, *SMALL, *length, *overrides), cwd=ROOT, check=True)
    steps = steps_of(out)
    assert all(step["actor/grad_norm"] > 0 for step in steps.values())  # each update changes the weights
    return steps


@pytest.fixture(scope="module")
def uninterrupted(task_folder, tmp_path_factory) -> dict[int, dict[str, float]]:
    return run_uninterrupted(task_folder, tmp_path_factory.mktemp("uninterrupted"), len(DEATHS["killed"]) + 2)


@pytest.mark.nightly
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", DEATHS)
def test_a_process_that_ends_in_any_phase_costs_at_most_one_step(task_folder, tmp_path, uninterrupted, name):
    check_deaths(task_folder, tmp_path, DEATHS[name], uninterrupted, f"trainer.async_save={'background' in name}")


def check_deaths(
    task_folder: Path, folder: Path, deaths: list[str], uninterrupted: dict[int, dict[str, float]], *overrides: str
) -> None:
    """The launcher names each rank that ends, and starts again within seconds, from the newest complete checkpoint.

    The ranks are forks of the launcher. tests/cluster/test_launch.py kills and restarts ranks that are not.
    """
    out, marks, stopped = folder / "run", folder / "marks", deaths[0].endswith("SIGSTOP")
    marks.mkdir()
    steps = [f"trainer.total_training_steps={len(deaths) + 2}", "actor.optim.total_updates=10"]
    options = [*steps, f"trainer.max_restarts={len(deaths)}", *overrides]
    script = [sys.executable, str(Path(__file__).parent / "killed_ranks.py"), ",".join(deaths), str(marks)]
    run = [*script, *command(task_folder, out, *SMALL, *options)[len(agentrl()) :]]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    what = "has shown no sign of life" if stopped else "was killed by SIGKILL"
    named = re.findall(rf"^agentrl: error: rank (\d) \(process \d+\) {what}", done.stderr, re.MULTILINE)
    ranks = [rank for rank, _ in groupby(named)]  # a slow end is named again
    assert ranks == [death[0] for death in deaths], done.stderr
    for attempt in range(len(deaths)):
        ended, started = (float((marks / file).read_text()) for file in (f"ended-{attempt}", f"started-{attempt + 1}"))
        assert started - ended < 120  # a rank that is left hangs for ten minutes
    assert re.findall(r"resuming at step (\d+)", done.stdout) == [str(step + 1) for step in range(len(deaths))]
    assert steps_of(out) == {step: uninterrupted[step] for step in range(1, len(deaths) + 3)}
    assert passes_audit(out)
