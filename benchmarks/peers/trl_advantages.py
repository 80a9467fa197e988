"""Compute the advantages of TRL's trainers for given rewards. Runs in TRL's virtual environment.

    python trl_advantages.py QUESTIONS     ->     JSON: for each question a list with the advantages of all rollouts

TRL has no separate function for advantages: the method `_generate_and_score_completions` computes them. The lines that
do this, from `unscorable_mask` (rollouts without a score) to the advantages, are extracted from TRL's source and run
without changes.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import sys
import textwrap
from pathlib import Path
from types import CodeType, SimpleNamespace

import torch
from trl.trainer import grpo_trainer, rloo_trainer


def cut(method: object) -> CodeType:
    """Return the compiled statements of `method` that compute advantages from `rewards_per_func`."""
    function = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0]
    texts = [ast.unparse(statement) for statement in function.body]
    first = next(n for n, text in enumerate(texts) if text.startswith("unscorable_mask ="))
    last = next(n for n, text in enumerate(texts) if text.startswith("advantages = torch.nan_to_num"))
    return compile("\n".join(texts[first : last + 1]), "trl", "exec")


LINES = {
    "grpo": (cut(grpo_trainer.GRPOTrainer._generate_and_score_completions), vars(grpo_trainer)),
    "rloo": (cut(rloo_trainer.RLOOTrainer._generate_and_score_completions), vars(rloo_trainer)),
}


def answer(asked: dict, batch: dict) -> list[float]:
    """Return the advantages for one question, which names a trainer and its settings."""
    columns = [batch["components"][key] for key in asked["rewards"]]
    rewards = torch.tensor(columns, dtype=torch.float64).T
    rewards[~torch.tensor(batch["valid"])] = math.nan
    weights = torch.ones(len(columns), dtype=torch.float64)
    settings = {"reward_clip_range": None, "beta": 0.0, "normalize_advantages": False, "reward_funcs": columns}
    settings |= {"scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize"}
    names = {
        "self": SimpleNamespace(**{**settings, **asked["options"]}, reward_weights=weights),
        "rewards_per_func": rewards,
        "num_generations": batch["uids"].count(batch["uids"][0]),
        "device": "cpu",
    }
    lines, module = LINES[asked["name"]]
    exec(lines, dict(module), scope := names)
    return scope["advantages"].tolist()


questions = json.loads(Path(sys.argv[1]).read_text())
print("\n" + json.dumps([answer(asked, questions["batches"][asked["batch"]]) for asked in questions["asked"]]))
