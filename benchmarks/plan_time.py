"""Compare predicted with measured times: `agentrl.plan` against runs of the quickstart's task on this machine.

    python benchmarks/plan_time.py START processes [--rounds 3]    # one and two processes
    python benchmarks/plan_time.py START tail [--steps 24]         # staleness 0, 1 and 4, tools with a long tail

START is the folder of a quickstart (outputs/quickstart), with `task` and the cold-started model in `sft`.

processes: in each round, a run with 8 tasks x 4 rollouts per step calibrates the hardware figures. The prediction is
for the quickstart's steps of 16 x 8 rollouts, in one process and in two processes. The rollout lengths are those of
the predicted run. The order of the two runs alternates from round to round.

tail: before each run, a calibration run without tool latency at staleness 0 calibrates the hardware figures. The
prediction is for the long-tail benchmark at staleness 0, 1 and 4, with the rollout lengths of the calibration run,
and the latencies and discarded tokens of tail/slow_task.py.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tail.slow_task import MEDIAN_S, MEDIAN_TOKENS, MOST_S, MOST_TOKENS, Tail, pareto

from agentrl.cli.compose import compose_config
from agentrl.config import RunConfig
from agentrl.data.order import TaskOrder
from agentrl.plan.calibration import Calibration, calibrate
from agentrl.plan.counts import shape_of
from agentrl.plan.hardware import load_hardware
from agentrl.plan.layout import layout_of, servers_of
from agentrl.plan.lengths import Lengths, RolloutLengths, Turn
from agentrl.plan.measured import Measured, read_run
from agentrl.plan.shapes import Shape
from agentrl.plan.split.simulate import Split, simulate
from agentrl.plan.time.passes import passes_of
from agentrl.plan.time.sampling import sampling_of
from agentrl.plan.time.step import setting_of
from agentrl.plan.time.training import Training

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
SHORT = ("data.val_files=[]", "trainer.val_before_train=false", "trainer.stop_when=null", "trainer.save_freq=0")
CACHE = ROOT / ".cache/plan_time"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", type=Path)
    parser.add_argument("part", choices=("processes", "tail"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    arguments = parser.parse_args()
    start = arguments.start.absolute()
    (processes if arguments.part == "processes" else tail)(start, arguments)


def processes(start: Path, arguments: argparse.Namespace) -> None:
    """Predict and measure the quickstart's step in one and in two processes."""
    small = ("data.train_batch_size=8", "rollout.n=4", "trainer.seed=1")
    found: dict[int, list[Measured]] = {1: [], 2: []}
    calibrations: list[Measured] = []
    for number in range(arguments.rounds):
        calibrations.append(train(start, f"small-{number}", 12, *small))
        for num in (1, 2) if number % 2 else (2, 1):
            sizes = (f"trainer.n_gpus_per_node={num}",)
            found[num].append(train(start, f"{num}-{number}", 12, *sizes))
    for number, of_round in enumerate(calibrations):
        calibration = calibrate(of_round, shape(start), load_hardware("cpu"), config_of(start, *small))
        for num, runs in found.items():
            predicted = simulated(start, calibration, runs[number].lengths, f"trainer.n_gpus_per_node={num}")
            names = ("timing_s/step", "timing_s/learn", "timing_s/collect")
            measured = [runs[number].median(name) or 0.0 for name in names]
            values = [predicted.step_s, predicted.learn_s, predicted.step_s * predicted.trainer_idle]
            report(
                f"round {number}, {num} processes", dict(zip(names, zip(values, measured, strict=True), strict=True))
            )


def tail(start: Path, arguments: argparse.Namespace) -> None:
    """Predict and measure the long-tail benchmark; calibrate before each run, because the machine's load changes."""
    num_rows = len((start / "task/train.jsonl").read_text(encoding="utf-8").splitlines())
    for staleness in (0, 1, 4):
        calibration, lengths = calibrated(start, f"no-latency-{staleness}", num_rows)
        key = f"trainer.max_staleness={staleness}"
        run = slow_run(start, f"staleness-{staleness}", arguments.steps, key)
        predicted = simulated(
            start, calibration, lengths, key, "rollout.deterministic=false", num_steps=arguments.steps, warm_up=0
        )
        report(
            f"staleness {staleness}",
            {
                "steps/s": (predicted.steps_per_s, arguments.steps / run.wall_s),
                "trainer idle": (predicted.trainer_idle, run.seconds["take"] / run.wall_s),
                "engine idle": (predicted.engine_idle, 1 - run.seconds["engine"] / run.wall_s),
                "staleness": (predicted.mean_staleness, run.mean("staleness/mean")),
                "restarted per step": (predicted.requeued, run.mean("staleness/requeued")),
            },
        )


def calibrated(start: Path, name: str, num_rows: int) -> tuple[Calibration, TailLengths]:
    """Run without tool latencies; return the calibrated hardware figures and the rollout lengths of the run.

    The latencies and the discarded tokens of tail/slow_task.py are added to the lengths.
    """
    measured = read_run(str(slow_run(start, name, 10, "trainer.max_staleness=0", late=False).folder))
    config = config_of(start, "rollout.deterministic=false")
    still = TailLengths(measured.lengths, num_rows, late=False)
    found = calibrate(replace(measured, lengths=still), shape(start), load_hardware("cpu"), config)
    print(f"{name}: share of peak {found.trainer.share_of_peak:.3g}, engine x {found.engine_factor:.3g}", flush=True)
    return found, TailLengths(measured.lengths, num_rows)


class TailLengths:
    """Measured lengths with the latencies and the discarded tokens of tail/slow_task.py."""

    def __init__(self, base: Lengths, num_rows: int, late: bool = True) -> None:
        self._base, self._late = base, late
        self._order = TaskOrder(num_rows, seed=0, shuffle=True)

    def group(self, number: int, size: int) -> Sequence[RolloutLengths]:
        """See `Lengths.group`."""
        tails = Tail()
        tails.group_size = size
        row = self._order.at(number).row
        return [self._slow(each, tails, row, str(n)) for n, each in enumerate(self._base.group(number, size))]

    def _slow(self, lengths: RolloutLengths, tails: Tail, row: int, name: str) -> RolloutLengths:
        discarded = int(pareto(tails.begin(row, name), MEDIAN_TOKENS, MOST_TOKENS))
        turns = [Turn(lengths.prompt + 1, lengths.prompt + 1, discarded)] if discarded else []
        for last, turn in enumerate(lengths.turns, start=1 - len(lengths.turns)):
            late = self._late and last < 0
            turns.append(turn._replace(wait_s=pareto(tails.turn(name), MEDIAN_S, MOST_S) if late else 0.0))
        return replace(lengths, turns=tuple(turns))


@dataclass(frozen=True)
class SlowRun:
    """A run of tail/slow_run.py."""

    folder: Path
    wall_s: float
    seconds: dict[str, float]

    def mean(self, metric: str) -> float:
        rows = map(json.loads, (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        return statistics.fmean(row.get(metric) or 0.0 for row in rows if row["step"])


def slow_run(start: Path, name: str, num_steps: int, *overrides: str, late: bool = True) -> SlowRun:
    """Run one training of the long-tail benchmark."""
    folder = CACHE / name
    shutil.rmtree(folder, ignore_errors=True)
    values = [*paths(start), *overrides, f"trainer.default_local_dir={folder}", "trainer.seed=0"]
    values += [f"trainer.total_training_steps={num_steps}", "trainer.save_freq=0", "trainer.val_before_train=false"]
    done = run([sys.executable, "benchmarks/tail/slow_run.py", *([] if late else ["--no-latency"]), *values])
    seconds = json.loads(done.splitlines()[-1])
    return SlowRun(folder, seconds.pop("ends")[-1], seconds)


def train(start: Path, name: str, num_steps: int, *overrides: str) -> Measured:
    """Train for some steps and read the run."""
    folder = CACHE / name
    shutil.rmtree(folder, ignore_errors=True)
    given = [*paths(start), *SHORT, *overrides, f"trainer.default_local_dir={folder}"]
    given.append(f"trainer.total_training_steps={num_steps}")
    run([sys.executable, "-m", "agentrl", "train", "+experiment=calculator", *given])
    return read_run(str(folder))


def run(command: Sequence[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def simulated(
    start: Path, calibration: Calibration, lengths: Lengths, *overrides: str, num_steps: int = 8, warm_up: int = 1
) -> Split:
    """Simulate the quickstart's steps with calibrated hardware."""
    config = config_of(start, *overrides)
    servers, of_model = servers_of(config), shape(start)
    engine = calibration.engine(sampling_of(config, of_model, servers, load_hardware("cpu")))
    trainer = Training(of_model, layout_of(config), calibration.trainer, passes_of(config))
    setting = replace(setting_of(config, servers, publish_s=calibration.publish_s or 0.0), other_s=calibration.other_s)
    return simulate(lengths, engine, trainer, setting, num_steps, warm_up)


def config_of(start: Path, *overrides: str) -> RunConfig:
    return compose_config(["+experiment=calculator", *paths(start), *SHORT, *overrides])


def paths(start: Path) -> list[str]:
    return [f"model.path={start}/sft/checkpoints/latest", f"data.train_files=[{start}/task/train.jsonl]"]


def shape(start: Path) -> Shape:
    found = shape_of(json.loads((start / "sft/checkpoints/latest/config.json").read_text(encoding="utf-8")))
    assert found is not None
    return found


def report(what: str, values: dict[str, tuple[float, float]]) -> None:
    """Print predicted and measured values."""
    for name, (predicted, measured) in values.items():
        off = f"{predicted / measured - 1:+.1%}" if measured else "-"
        print(f"{what}, {name}: predicted {predicted:.4g}, measured {measured:.4g}, {off}", flush=True)


if __name__ == "__main__":
    main()
