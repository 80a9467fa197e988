"""Measure how many rollouts the audit checks per second: `python benchmarks/audit_speed.py [RUN]`.

Without RUN, the script first creates rollouts of three turns: a scripted model calls a tool twice, then answers. All
conversations differ, so the audit cannot use the rendering of one conversation for another one.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from agentrl.audit.auditor import Auditor
from agentrl.cli.main import main

TOOL = '''
from agentrl.tools.function import tool

@tool
def look(place: str) -> str:
    """Look.

    Args:
        place: where.
    """
    return f"the answer of {place}, which nobody else was given"
'''
SCRIPT = """
from itertools import count
TURNS = count()

def reply(context):
    n = next(TURNS)
    call = '<tool_call>{"name": "look", "arguments": {"place": "p%d"}}</tool_call>' % n
    return call if context.count("the answer of") < 2 else f"It is {n % 10}"
"""
REWARD = """
def compute_score(solution_str):
    return len(solution_str) % 3
"""


def make_run(folder: Path, num_steps: int = 4) -> Path:
    """Create a run with rollouts of three turns, 1,024 per step."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples/calculator"))
    from make_task import make_task

    make_task(folder / "task", seed=0)
    for name, text in (("tool", TOOL), ("script", SCRIPT), ("reward", REWARD)):
        (folder / f"{name}.py").write_text(text)
    keys = {
        "model.path": folder / "task/model",
        "data.train_files": folder / "task/train.jsonl",
        "data.train_batch_size": 128,
        "data.max_prompt_length": 128,
        "data.max_response_length": 512,
        "rollout.n": 8,
        "rollout.engine": "scripted",
        "rollout.script_path": f"{folder}/script.py:reply",
        "rollout.agent.default_agent_loop": "tool_agent",
        "rollout.multi_turn.function_tool_path": folder / "tool.py",
        "reward.custom_reward_function.path": folder / "reward.py",
        "trainer.mode": "rollout_only",
        "trainer.total_training_steps": num_steps,
        "trainer.default_local_dir": folder / "run",
        "trainer.logger": "[jsonl]",
    }
    assert main(["train", *(f"{key}={value}" for key, value in keys.items())]) == 0
    return folder / "run"


def measure(run: Path) -> None:
    """Print how many rollouts the audit checks per second of CPU time and per second of wall-clock time."""
    files = sorted((run / "trajectories" / "train").glob("*.parquet"))
    auditor = Auditor("train", folder=run)
    auditor.audit(files[:1])  # loads the tokenizer
    started, clock = time.process_time(), time.perf_counter()
    ledger = auditor.audit(files)
    seconds, waited = time.process_time() - started, time.perf_counter() - clock
    num_rollouts, num_tokens = (ledger.findings[name].num_checked for name in ("groups", "segments"))
    problems = sum(found.num_problems for found in ledger.findings.values())
    print(f"{num_rollouts:,} rollouts, {num_tokens:,} tokens and segments, {problems} problems")
    print(f"{num_rollouts / seconds:,.0f} rollouts/s of CPU time ({num_rollouts / waited:,.0f}/s of wall-clock time)")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            measure(make_run(Path(folder)))
