"""Applies verl's own off-policy correction to a step; runs in verl's interpreter.

python verl_correction_peer.py QUESTIONS     ->     JSON: mask, weights and losses of each question
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask


class Settings(SimpleNamespace):
    """Settings that can be read by attribute and by key."""

    def get(self, key: str, default: object = None) -> object:
        """Like `dict.get`."""
        return getattr(self, key, default)


def answer(asked: dict[str, object], step: dict[str, torch.Tensor]) -> dict[str, object]:
    """Correct one step under one setting."""
    options = {key: value for key, value in asked.items() if key not in ("bypass_mode", "loss_type")}
    weights, mask, metrics = compute_rollout_correction_and_rejection_mask(
        step["old"], step["behaviour"], step["mask"], **options
    )
    applied = weights.batch["rollout_is_weights"] if weights is not None else None
    actor = Settings(
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.2,
        clip_ratio_c=3.0,
        global_batch_info={},
        policy_loss={"rollout_correction": asked},
    )
    common = {"log_prob": step["policy"], "advantages": step["advantages"], "config": actor}
    if asked.get("bypass_mode"):
        loss, _ = core_algos.compute_policy_loss_bypass_mode(
            old_log_prob=step["behaviour"], response_mask=step["mask"], **common
        )
    else:
        loss, _ = core_algos.compute_policy_loss_vanilla(
            old_log_prob=step["old"], response_mask=mask, rollout_is_weights=applied, **common
        )
    names = ("k3_kl", "rollout_is_eff_sample_size", "rollout_rs_masked_fraction")
    return {
        "mask": mask.tolist(),
        "weights": None if applied is None else applied.tolist(),
        "loss": loss.item(),
        **{name: metrics.get(f"rollout_corr/{name}") for name in names},
    }


questions = json.loads(Path(sys.argv[1]).read_text())
step = {name: torch.tensor(values, dtype=torch.float64) for name, values in questions["step"].items()}
step["mask"] = step["mask"].long()
print("\n" + json.dumps([answer(asked, step) for asked in questions["asked"]]))
