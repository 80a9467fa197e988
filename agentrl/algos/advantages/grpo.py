"""GRPO: a rollout's advantage is its reward, standardised within its group (Shao et al. 2024, arXiv:2402.03300)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, find_members
from agentrl.algos.advantages.normalization import standardised


def grpo(batch: AdvantageBatch, *, norm_adv_by_std: bool = True) -> tuple[Tensor, Tensor]:
    """A_i = (r_i - mean(r)) / (std(r) + 1e-6) over the valid rollouts of the group; unbiased std.

    Rewards 1, 0, 0, 1: mean 0.5, std 0.5774, advantages 0.8660, -0.8660, -0.8660, 0.8660.
    A group of one, or of equal rewards, has advantage 0. `norm_adv_by_std=False` skips the division (`dr_grpo`).
    The returns equal the advantages.
    """
    members = find_members(batch)
    advantages = torch.zeros_like(members.scores)
    for group in members.unequal():
        advantages[group] = standardised(members.scores[group], norm_adv_by_std)
    result = members.spread(advantages.to(batch.token_rewards.dtype), batch.loss_mask)
    return result, result
