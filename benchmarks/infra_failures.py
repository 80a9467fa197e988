"""Measure whether infrastructure failures of a tool change what the calculator run learns.

    OMP_NUM_THREADS=1 python benchmarks/infra_failures.py --out outputs/infra [--rate 0.05] [--steps 30] [--seeds 0,1,2]

The script makes one cold start (SFT, seed 0). Then it makes two GRPO runs of `--steps` steps for each seed. The two
runs differ only in the tool: one run uses the calculator, and the other run uses a calculator that raises `InfraError`
in a share of its calls (`failing_calculator.py`). The models of both runs are tested with the calculator that does not
fail, on `--tasks` test tasks with two samples each. A finished part is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.stats.intervals import paired_difference
from agentrl.store import TrajectoryStore
from agentrl.telemetry.jsonl import read_metrics
from agentrl.utils.shipped import shipped

SAMPLES_PER_TASK = 2
FAILING = Path(__file__).with_name("failing_calculator.py")


def agentrl(command: str, folder: Path, *words: str) -> Path:
    """Run a command that writes into `folder`, unless the folder is already complete; return the folder."""
    if not (folder / "done").exists():
        where = f"trainer.default_local_dir={folder}"
        subprocess.run([sys.executable, "-m", "agentrl", command, *words, where], check=True, stdout=subprocess.DEVNULL)
        (folder / "done").touch()
    return folder


def cold_start(out: Path) -> Path:
    if not (out / "task").exists():
        script = shipped("examples/calculator/make_task.py")
        subprocess.run([sys.executable, str(script), "--out", str(out / "task"), "--seed", "0"], check=True)
    rows = [f"data.train_files=[{out}/task/sft.jsonl]", f"data.val_files=[{out}/task/val.jsonl]"]
    return agentrl("train", out / "sft", "+experiment=calculator_sft", f"model.path={out}/task/model", *rows)


def tool_of(out: Path, rate: float) -> Sequence[str]:
    """Return overrides for the tool that fails in a share of its calls; none if `rate` is 0."""
    if not rate:
        return ()
    file = out / f"tool-{rate:g}.yaml"
    file.write_text(json.dumps({"tools": [{"class_name": f"{FAILING}:FailingCalculator", "config": {"rate": rate}}]}))
    return "rollout.multi_turn.function_tool_path=null", f"rollout.multi_turn.tool_config_path={file}"


def trained(out: Path, model: Path, seed: int, rate: float, num_steps: int) -> Path:
    rows = [f"data.train_files=[{out}/task/train.jsonl]", f"data.val_files=[{out}/task/val.jsonl]"]
    steps = [f"trainer.total_training_steps={num_steps}", f"trainer.test_freq={num_steps}", "trainer.stop_when=null"]
    words = [f"model.path={model}/checkpoints/latest", f"trainer.seed={seed}", *rows, *steps, *tool_of(out, rate)]
    return agentrl("train", out / f"rate-{rate:g}-seed-{seed}-steps-{num_steps}", "+experiment=calculator", *words)


def tested(out: Path, run: Path, num_tasks: int) -> dict[str, list[float]]:
    """Return task -> scores of the run's model, with the calculator that does not fail."""
    words = [f"model.path={run}/checkpoints/latest", f"data.val_files=[{out}/task/test.jsonl]"]
    words += [f"rollout.val_kwargs.n={SAMPLES_PER_TASK}", f"data.val_max_samples={num_tasks}", "trainer.seed=0"]
    folder = agentrl("eval", run / "test", "+experiment=calculator", *words)
    scores: dict[str, list[float]] = {}
    for stored in TrajectoryStore(folder / "trajectories/val").scan(columns=["uid", "rewards"]):
        scores.setdefault(stored.task.uid, []).append(stored.rollout.reward)
    return scores


def mean_of(run: Path, name: str) -> float:
    """Return the mean of a metric over the steps that have it; 0 if no step has it."""
    found = [row[name] for row in read_metrics(run / "metrics.jsonl") if name in row]
    return statistics.fmean(found) if found else 0.0


def success(scores: Mapping[str, Sequence[float]]) -> float:
    return statistics.fmean(score >= 1 for each in scores.values() for score in each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tasks", type=int, default=512, help="test tasks, at most 512")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    model = cold_start(out)
    print(f"cold start: success {success(tested(out, model, options.tasks)):.1%}")
    differences, pairs = [], []
    for seed in map(int, options.seeds.split(",")):
        runs = [trained(out, model, seed, rate, options.steps) for rate in (0.0, options.rate)]
        whole, failing = (tested(out, run, options.tasks) for run in runs)
        differences.append(success(failing) - success(whole))
        pairs += [(whole[uid], failing[uid]) for uid in whole]
        dropped, shift = mean_of(runs[1], "rollouts/dropped"), mean_of(runs[1], "left_out/calls_shift")
        print(
            f"seed {seed}: success {success(whole):.1%} without failures, {success(failing):.1%} with "
            f"({dropped:.1%} of the rollouts dropped, calls_shift {shift:.1%})"
        )
    print(f"difference per seed: {', '.join(f'{each:+.1%}' for each in differences)}")
    print(f"all seeds: {paired_difference(pairs)} (with - without; 95% interval over the test tasks of each seed)")


if __name__ == "__main__":
    main()
