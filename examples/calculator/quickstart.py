"""From random weights to a small agent that uses its tool: make the task, cold start, GRPO, test before and after.

    python examples/calculator/quickstart.py --seed 0

Runs the general commands one after another and writes outputs/quickstart/summary.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).absolute().parents[2]  # not resolved: a linked examples/ keeps its outputs beside the link
OUT = Path("outputs/quickstart")  # the paths that configs/experiment/calculator*.yaml name
SAMPLES_PER_TASK = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    os.chdir(ROOT)
    shutil.rmtree(OUT, ignore_errors=True)  # otherwise training would go on from the last quickstart's checkpoints
    summary = quickstart(seed)
    (OUT / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(summary, indent=2))


def quickstart(seed: int) -> dict[str, float]:
    """Every step of the demo; returns what summary.json says."""
    run("examples/calculator/make_task.py", "--out", str(OUT / "task"), "--seed", str(seed))
    sft_seconds = agentrl("train", "+experiment=calculator_sft", f"trainer.seed={seed}")
    before = evaluate("before", OUT / "sft/checkpoints/latest", seed)
    rl_seconds = agentrl("train", "+experiment=calculator", f"trainer.seed={seed}")
    after = evaluate("after", OUT / "rl/checkpoints/latest", seed)
    task = json.loads((OUT / "task/task.json").read_text(encoding="utf-8"))
    return {
        "success_before": before["val/success"],
        "success_after": after["val/success"],
        "num_test_tasks": int(after["val/num_tasks"]),
        "samples_per_task": SAMPLES_PER_TASK,
        "teacher_share_correct": task["teacher_share_correct"],
        "tool_call_share": after["val/tool_calls/share"],
        "rl_steps": last_step(OUT / "rl/metrics.jsonl"),
        "sft_seconds": round(sft_seconds, 1),
        "rl_seconds": round(rl_seconds, 1),
        "seed": seed,
    }


def evaluate(name: str, model: Path, seed: int) -> dict[str, float]:
    """Sampled success on the test tasks, which nothing before has seen."""
    folder = OUT / f"test_{name}"
    agentrl(
        "eval",
        "+experiment=calculator",
        f"model.path={model}",
        f"data.val_files=[{OUT}/task/test.jsonl]",
        f"rollout.val_kwargs.n={SAMPLES_PER_TASK}",
        f"trainer.default_local_dir={folder}",
        f"trainer.seed={seed}",
    )
    return json.loads((folder / "eval.json").read_text(encoding="utf-8"))


def agentrl(*arguments: str) -> float:
    return run("-m", "agentrl", *arguments)


def run(*arguments: str) -> float:
    """Run Python on `arguments`, shown as they are typed; the seconds it took."""
    print("\n$ python", *arguments, flush=True)
    start_s = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], env={"OMP_NUM_THREADS": "1", **os.environ})
    if done.returncode:
        sys.exit(done.returncode)  # it has said why
    return time.perf_counter() - start_s


def last_step(metrics: Path) -> int:
    return max(json.loads(line)["step"] for line in metrics.read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    main()
