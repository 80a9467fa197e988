"""GRPO: a rollout's advantage is its reward, standardised within its group (Shao et al. 2024, arXiv:2402.03300)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.members import AdvantageBatch, equal, find_members

EPSILON = 1e-6  # as in verl


def grpo(batch: AdvantageBatch, *, norm_adv_by_std: bool = True) -> tuple[Tensor, Tensor]:
    """A_i = (r_i - mean(r)) / (std(r) + 1e-6) over the valid rollouts of the group; unbiased std.

    Rewards 1, 0, 0, 1: mean 0.5, std 0.5774, advantages 0.8660, -0.8660, -0.8660, 0.8660.
    A group of one, or of equal rewards, has advantage 0. Without `norm_adv_by_std` the division is left out
    (Dr. GRPO, arXiv:2503.20783). Returns and advantages are the same.
    """
    members = find_members(batch)
    advantages = torch.zeros_like(members.scores)
    for group in members.groups:
        indices = [member for member in group if members.valid[member]]
        if indices:
            advantages[indices] = _standardised(members.scores[indices], norm_adv_by_std)
    result = members.spread(advantages.to(batch.token_rewards.dtype), batch.loss_mask)
    return result, result


def _standardised(scores: Tensor, by_std: bool) -> Tensor:
    if equal(scores):
        return torch.zeros_like(scores)
    centred = scores - scores.mean()
    return centred / (scores.std() + EPSILON) if by_std else centred
