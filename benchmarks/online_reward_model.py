"""Compare a rule as reward with a reward model that learns online from the rule, on the calculator task.

    python benchmarks/online_reward_model.py [--steps 50] [--seed 0] [--start FOLDER]

Both runs are `agentrl train` from one cold start with the same seed and keys: +experiment=calculator and
+experiment=calculator_online. Success is measured on 512 sampled rollouts of held-out tasks. A finished run is not
repeated.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from vs_trl import ENVIRONMENT, ROOT, start_of

SIDES = {"calculator": "val/success", "calculator_online": "val/reward/rule"}
"""Experiment -> metric with the success rate that the rule determines."""
POINTS = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=Path, help="a quickstart's folder, with task/ and sft/; made if none is given")
    arguments = parser.parse_args()
    start = arguments.start or start_of("qwen3")
    ends = {name: end(train(start, name, arguments.steps, arguments.seed), metric) for name, metric in SIDES.items()}
    apart = 100 * (ends["calculator"] - ends["calculator_online"])
    print(f"the online reward model ends {abs(apart):.1f} points {'below' if apart > 0 else 'above'} the rule")
    if apart > POINTS:
        sys.exit(f"more than {POINTS:g} points below")


def train(start: Path, experiment: str, num_steps: int, seed: int) -> Path:
    """Train one run and return its folder."""
    folder = ROOT / ".cache/online_reward_model" / f"{experiment}-{num_steps}-{seed}"
    if (folder / "report.html").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    keys = [
        *(f"data.{split}_files=[{start}/task/{split}.jsonl]" for split in ("train", "val")),
        *(f"model.path={start}/sft/checkpoints/latest", f"trainer.default_local_dir={folder}"),
        *(f"trainer.total_training_steps={num_steps}", "trainer.stop_when=null", f"trainer.seed={seed}"),
        *("trainer.test_freq=25", "trainer.val_before_train=false"),
    ]
    command = [sys.executable, "-m", "agentrl", "train", f"+experiment={experiment}", *keys]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return folder


def end(folder: Path, metric: str) -> float:
    """Return the final success rate by the rule. Print the rate and the reward model's metrics at each tested step."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows:
        if metric in row:
            model = [
                f"{name} {row[key]:.3f}"
                for name in ("accuracy", "auc", "ece", "drift")
                if (key := f"reward_model/{name}") in row
            ]
            print(f"{folder.name} step {row['step']}: success by the rule {row[metric]:.3f}", *model)
    return float(next(row[metric] for row in reversed(rows) if metric in row))


if __name__ == "__main__":
    main()
