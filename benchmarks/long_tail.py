"""Measure the speed-up from bounded staleness with long-tailed latencies: max_staleness 0, 1 and 4.

    python benchmarks/long_tail.py [--pairs 3] [--steps 30]      # a table, and docs/images/long_tail.svg

The task is the calculator with 16 tasks x 8 rollouts per step and up to 3 turns. Two values are drawn from Pareto
distributions with exponent 1.2: the latency of the tool (median 50 ms, at most 5 s), and the number of tokens that a
rollout samples and discards before its first turn (median 4, at most 128). Both are functions of (task, rollout, turn),
so they are equal in all runs. The trained tokens are those of the original task. See tail/slow_task.py.

A run is timed from its first rollout to the end of its last update. It does not validate; saved checkpoints are
evaluated afterwards. The work-conserving bound (no part waits while it has work) for N steps is N / max(L, E, T / C)
steps per second:

- L: seconds of the learner and of publishing for N steps, measured in the on-policy run; in that run, nothing
  else computes at the same time
- E: seconds that the engine computes for N steps, measured in a run without tool latency that starts the rollouts of
  five steps together
- T: sum of the seconds of all rollouts; at most C = 16 x 8 x (max_staleness + 1) rollouts run concurrently

Engine and learner share a process and its interpreter lock. If they cannot run in parallel, the bound is
N / max(L + E, T / C).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from curves import draw_curves
from vs_trl import ENVIRONMENT, ROOT, evaluate, start_of

SIDES = {"staleness 0": 0, "staleness 1": 1, "staleness 4": 4}
UNHURRIED, AT_ONCE = "nobody late", 5
GROUPS, SIBLINGS = 16, 8

Row = dict[str, float]


class Result(NamedTuple):
    """Result of one run: end time of each step, seconds by name, metrics per step, and the folder."""

    ends: list[float]
    seconds: Row
    steps: list[Row]
    folder: Path

    @property
    def wall_s(self) -> float:
        return self.ends[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints, each evaluated")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/long_tail.svg")
    arguments = parser.parse_args()
    start, runs = start_of("qwen3"), list[dict[str, Result]]()
    curves: dict[str, list[list[tuple[float, float, float]]]] = {side: [] for side in SIDES}
    for pair in range(arguments.pairs):
        order = sorted([*SIDES, UNHURRIED], reverse=bool(pair % 2))  # alternating: the machine's load changes
        runs.append({side: train(start, side, pair, arguments.steps, arguments.every) for side in order})
        for line in table(runs[-1]):
            print(f"pair {pair} {line}", flush=True)
        for side in SIDES:
            curves[side].append(curve(start, runs[-1][side]))
            print(f"pair {pair} {side}: (step, seconds, success)", curves[side][-1], flush=True)
    for line in ratios(runs):
        print(line)
    arguments.out.write_text(draw_curves(curves), encoding="utf-8")


def train(start: Path, side: str, seed: int, num_steps: int, every: int) -> Result:
    """Run one training from the cold-started model."""
    folder = ROOT / ".cache/long_tail" / f"{side.replace(' ', '-')}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    overrides = [
        *(f"model.path={start}/sft/checkpoints/latest", f"data.train_files=[{start}/task/train.jsonl]"),
        *(f"trainer.save_freq={every}", f"trainer.seed={seed}", f"trainer.default_local_dir={folder}"),
    ]
    if side == UNHURRIED:
        size = (f"data.train_batch_size={GROUPS * AT_ONCE}", f"trainer.total_training_steps={num_steps // AT_ONCE}")
        overrides += ["--no-latency", "trainer.mode=rollout_only", *size]
    else:
        overrides += [f"trainer.total_training_steps={num_steps}", f"trainer.max_staleness={SIDES[side]}"]
    command = [sys.executable, "benchmarks/tail/slow_run.py", *overrides]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    seconds = json.loads(done.stdout.splitlines()[-1])
    rows = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return Result(seconds.pop("ends"), seconds, [row for row in rows if row["step"]], folder)


def table(runs: Mapping[str, Result]) -> list[str]:
    """Return one line per staleness: steps per second, bounds, idle shares, measured staleness."""
    on_policy = runs["staleness 0"]
    num_steps = len(on_policy.steps)
    learn_s = on_policy.seconds["learn"] + on_policy.seconds["publish"]
    engine_s = runs[UNHURRIED].seconds["engine"] / (len(runs[UNHURRIED].steps) * AT_ONCE) * num_steps
    lines = [f"L {learn_s / num_steps:.3g} s a step, E {engine_s / num_steps:.3g} s a step"]
    for side, staleness in SIDES.items():
        run = runs[side]
        rollouts_s = sum(row["rollout_s/mean"] for row in run.steps) * GROUPS * SIBLINGS
        under_way = GROUPS * SIBLINGS * (staleness + 1)
        figures = {
            "steps/s": num_steps / run.wall_s,
            "bound": num_steps / max(learn_s, engine_s, rollouts_s / under_way),
            "bound on one processor": num_steps / max(learn_s + engine_s, rollouts_s / under_way),
            "trainer idle": run.seconds["take"] / run.wall_s,
            "engine idle": 1 - run.seconds["engine"] / run.wall_s,
            "staleness": statistics.fmean(row.get("staleness/mean", 0) for row in run.steps),
            "begun again": sum(row.get("staleness/requeued", 0) for row in run.steps),
            "failed": sum(row["rollouts/failed"] for row in run.steps),
        }
        lines.append(f"{side}: " + ", ".join(f"{name} {value:.3g}" for name, value in figures.items()))
    return lines


def ratios(runs: Sequence[Mapping[str, Result]]) -> list[str]:
    """Return one line per staleness: speed relative to staleness 0 (on-policy), as median and range over the pairs."""
    lines = []
    for side in SIDES:
        each = [pair["staleness 0"].wall_s / pair[side].wall_s for pair in runs]
        lines.append(f"{side}: {statistics.median(each):.2f} times staleness 0 ({min(each):.2f} to {max(each):.2f})")
    return lines


def curve(start: Path, run: Result) -> list[tuple[float, float, float]]:
    """Return (step, elapsed seconds, success on held-out tasks) of the initial model and of every checkpoint."""
    saved = sorted(int(path.name.removeprefix("step-")) for path in run.folder.glob("checkpoints/step-*"))
    models = {0: start / "sft/checkpoints/latest"} | {step: run.folder / f"checkpoints/step-{step}" for step in saved}
    return [(step, run.ends[step], evaluate(start, model)) for step, model in models.items()]


if __name__ == "__main__":
    main()
