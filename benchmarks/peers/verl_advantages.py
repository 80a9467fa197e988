"""Compute verl's advantages and returns for given rewards. Runs in verl's virtual environment.

python verl_advantages.py QUESTIONS     ->     JSON: for each question one list of numbers

The list contains the advantages of all trained tokens, then the returns of all trained tokens.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from verl.trainer.ppo import core_algos


class Settings(dict):
    """A dictionary that also allows access by attribute."""

    __getattr__ = dict.get


def answer(asked: dict, batch: dict) -> list[float]:
    """Return the advantages of all trained tokens, then the returns of all trained tokens."""
    rewards, values, baselines = (
        torch.tensor(batch[key], dtype=torch.float64) for key in ("rewards", "values", "baselines")
    )
    mask = torch.tensor(batch["mask"]).long()
    options = asked["options"]
    given = {"token_level_rewards": rewards, "response_mask": mask, "index": np.array(batch["uids"], dtype=object)}
    if asked["name"] == "gae":
        del given["index"]
        given |= {"values": values, **options}
    elif asked["name"] in ("grpo", "grpo_vectorized"):
        given |= options
    else:
        given |= {"config": Settings({"norm_adv_by_std_in_grpo": True, **options}), "reward_baselines": baselines}
    if asked["name"] == "gdpo":
        tensors = {"prompts": mask[:, :0], "attention_mask": torch.ones_like(mask)}
        given |= {"non_tensor_batch": {key: np.array(each) for key, each in batch["components"].items()}}
        given |= {"batch": tensors}
    advantages, returns = core_algos.get_adv_estimator_fn(asked["name"])(**given)
    return torch.cat([advantages[mask.bool()], returns[mask.bool()]]).tolist()


questions = json.loads(Path(sys.argv[1]).read_text())
print("\n" + json.dumps([answer(asked, questions["batches"][asked["batch"]]) for asked in questions["asked"]]))
