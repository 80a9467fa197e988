"""GPG: reward minus group mean, scaled up if some groups have equal rewards (Chu et al. 2025, arXiv:2504.02546)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, find_members
from agentrl.algos.advantages.normalization import standardised


def gpg(batch: AdvantageBatch) -> tuple[Tensor, Tensor]:
    """A_i = alpha * (r_i - mean(r)), alpha = B / (B - M), for B valid rollouts, M of them in groups of equal rewards.

    Rewards 1, 0 of one task and 1, 1 of another: alpha = 4 / 2, advantages 1, -1, 0, 0. A group of one counts in M.
    With alpha, the mean loss over the batch equals the mean over the rollouts that have a gradient.
    The returns equal the advantages.
    """
    members = find_members(batch)
    advantages, num_compared = torch.zeros_like(members.scores), 0
    for group in members.unequal():
        advantages[group] = standardised(members.scores[group], by_std=False)
        num_compared += len(group)
    alpha = int(members.valid.sum()) / max(num_compared, 1)
    result = members.spread((alpha * advantages).to(batch.token_rewards.dtype), batch.loss_mask)
    return result, result
