"""Compare a GRPO step with a tool in agentrl and TRL: equal initial model, tasks and optimizer; in turn, one thread.

    python benchmarks/vs_trl.py [--family qwen3 llama] [--pairs 5] [--ours key=value ...]
    python benchmarks/vs_trl.py --curves                 # success over time: docs/images/vs_trl.svg

Every run starts from the calculator's cold-started model (created once in .cache/vs_trl). So a difference in speed does
not come from a model that has learned shorter answers. Turns and tokens are printed next to the seconds. A step is 16
tasks x 8 rollouts of up to 3 turns and one update on all of them. The first step is not counted. The script prints
medians over the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from curves import draw_curves
from peers.environment import HERE, peer_python

ROOT = HERE.parents[1]
CACHE = ROOT / ".cache/vs_trl"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
FIGURES = ("step_s", "rollout_s", "training_s", "rest_s", "cpu_s", "turns", "response_tokens", "reward")
MICRO_BATCH = 64
"""Rollouts per forward pass in TRL's training. Of 16, 32, 64 and 128, 64 is the fastest here, by 3 to 5%."""

Step = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", nargs="+", default=["qwen3", "llama"], choices=["qwen3", "llama"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=11)
    parser.add_argument("--ours", nargs="*", default=[], help="overrides of our configuration")
    parser.add_argument("--curves", action="store_true")
    parser.add_argument("--curve-steps", type=int, default=60)
    arguments = parser.parse_args()
    ours = ", ".join(f"{name} {version(name)}" for name in ("agentrl-train", "torch", "transformers"))
    print(f"ours: {ours}, python {sys.version.split()[0]}, {' '.join(arguments.ours)}")
    for family in arguments.family:
        start = start_of(family)
        if arguments.curves:
            draw(start, arguments.ours, arguments.curve_steps)
        else:
            compare(start, arguments.ours, arguments.pairs, arguments.steps)


def start_of(family: str) -> Path:
    """Return the folder with the task and the cold-started model of a family; create the folder on first use."""
    folder = CACHE / family
    if not (folder / "sft/checkpoints/latest").exists():
        shutil.rmtree(folder, ignore_errors=True)
        run([sys.executable, "examples/calculator/make_task.py", "--out", folder / "task", "--family", family])
        files = (f"data.train_files=[{folder}/task/sft.jsonl]", f"data.val_files=[{folder}/task/val.jsonl]")
        where = (f"model.path={folder}/task/model", f"trainer.default_local_dir={folder}/sft")
        run([sys.executable, "-m", "agentrl", "train", "+experiment=calculator_sft", *files, *where])
    return folder


def compare(start: Path, overrides: Sequence[str], num_pairs: int, num_steps: int) -> None:
    """Run agentrl and TRL in turn, and print the medians."""
    sides: dict[str, Callable[[int], list[Step]]] = {
        "agentrl": lambda seed: run_ours(start, overrides, num_steps, seed),
        "trl": lambda seed: run_trl(start, num_steps, seed),
    }
    runs: dict[str, list[Step]] = {name: [] for name in sides}
    for pair in range(num_pairs):
        for name in sorted(sides, reverse=bool(pair % 2)):  # alternate the order, because the machine gets warmer
            runs[name].append(median_step(sides[name](pair)[1:]))
            print(f"{start.name} pair {pair} {name:8s}", written(runs[name][-1]), flush=True)
    medians = {name: median_step(steps) for name, steps in runs.items()}
    for name, median in medians.items():
        print(f"{start.name} median {name:8s}", written(median))
    for figure in ("step_s", "rollout_s", "training_s", "cpu_s"):
        ratios = [trl[figure] / own[figure] for own, trl in zip(runs["agentrl"], runs["trl"], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{start.name} {figure}: TRL / agentrl {statistics.median(ratios):.2f} ({spread})")


def median_step(steps: Sequence[Step]) -> Step:
    """Return the median of each value over the steps."""
    return {name: statistics.median(step[name] for step in steps) for name in FIGURES}


def written(step: Step) -> str:
    return ", ".join(f"{name} {step[name]:.3g}" for name in FIGURES)


def run_ours(start: Path, overrides: Sequence[str], num_steps: int, seed: int, *, every: int = 0) -> list[Step]:
    """Run agentrl, which validates every `every` steps (0: never). Return the measurements of each step."""
    folder = CACHE / "runs/ours"
    shutil.rmtree(folder, ignore_errors=True)
    validation = (f"[{start}/task/val.jsonl]", "true") if every else ("[]", "false")
    run(
        [
            *(sys.executable, HERE / "agentrl_calculator.py", folder / "steps.jsonl"),
            *(f"model.path={start}/sft/checkpoints/latest", f"data.train_files=[{start}/task/train.jsonl]"),
            *(f"data.val_files={validation[0]}", f"trainer.val_before_train={validation[1]}"),
            *(f"trainer.test_freq={every}", f"trainer.total_training_steps={num_steps}", "trainer.stop_when=null"),
            *(f"trainer.default_local_dir={folder}", f"trainer.seed={seed}", "trainer.logger=[jsonl]"),
            *("actor.optim.lr_scheduler_type=constant", "actor.optim.min_lr_ratio=0", "rollout.deterministic=false"),
            *overrides,
        ]
    )
    return read_steps(folder / "steps.jsonl")


def run_trl(start: Path, num_steps: int, seed: int, *, every: int = 0) -> list[Step]:
    """Run TRL, which saves the model every `every` steps (0: never). Return the measurements of each step."""
    out = CACHE / "runs/trl/steps.jsonl"
    shutil.rmtree(out.parent, ignore_errors=True)
    script = [peer_python("trl"), HERE / "trl_calculator.py", "--micro", MICRO_BATCH, "--out", out]
    files = ["--model", start / "sft/checkpoints/latest", "--train", start / "task/train.jsonl"]
    run([*script, *files, "--steps", num_steps, "--seed", seed, "--save-every", every])
    return read_steps(out)


def read_steps(file: Path) -> list[Step]:
    """Return the steps of a run, with `rest_s` added. The line with the versions of libraries is left out."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [{**row, "rest_s": row["step_s"] - row["rollout_s"] - row["training_s"]} for row in rows if "step" in row]


def run(command: Sequence[object]) -> None:
    """Run a command without output; print its output if it fails."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def draw(start: Path, overrides: Sequence[str], num_steps: int, every: int = 10) -> None:
    """Draw success on held-out tasks over steps and over seconds, with three seeds each for agentrl and TRL."""
    curves: dict[str, list[list[tuple[float, float, float]]]] = {"agentrl": [], "TRL": []}
    for seed in range(3):
        steps = run_ours(start, overrides, num_steps, seed, every=every)
        success = our_success(CACHE / "runs/ours/metrics.jsonl")
        curves["agentrl"].append(with_seconds(steps, success))
        steps = run_trl(start, num_steps, seed, every=every)
        success = {0: success[0]} | {
            n: evaluate(start, CACHE / f"runs/trl/steps/step-{n}") for n in range(every, num_steps + 1, every)
        }
        curves["TRL"].append(with_seconds(steps, success))
        print({name: runs[-1] for name, runs in curves.items()}, flush=True)
    picture = ROOT / ("docs/images/vs_trl.svg" if start.name == "qwen3" else f"docs/images/vs_trl_{start.name}.svg")
    picture.write_text(draw_curves(curves), encoding="utf-8")
    print(picture)


def with_seconds(steps: Sequence[Step], success: dict[int, float]) -> list[tuple[float, float, float]]:
    """Return (step, elapsed training seconds, success on held-out tasks) for each entry of `success`."""
    return [
        (number, sum(step["step_s"] for step in steps[:number]), value) for number, value in sorted(success.items())
    ]


def our_success(metrics: Path) -> dict[int, float]:
    rows = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
    return {row["step"]: row["val/success"] for row in rows if "val/success" in row}


def evaluate(start: Path, model: Path) -> float:
    """Return the success of a saved model on held-out tasks, measured by `agentrl eval`."""
    folder = CACHE / "runs/evaluation"
    where = (f"model.path={model}", f"data.val_files=[{start}/task/val.jsonl]", f"trainer.default_local_dir={folder}")
    run([sys.executable, "-m", "agentrl", "eval", "+experiment=calculator", *where])
    return float(json.loads((folder / "eval.json").read_text(encoding="utf-8"))["val/success"])


if __name__ == "__main__":
    main()
