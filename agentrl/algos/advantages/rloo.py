"""RLOO: a rollout's reward minus the mean of the group's other rollouts (Ahmadian et al., arXiv:2402.14740)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, find_members


def rloo(batch: AdvantageBatch) -> tuple[Tensor, Tensor]:
    """A_i = r_i - mean of r_j over j != i = n / (n - 1) * (r_i - mean(r)), over the n valid rollouts of the group.

    Rewards 1, 0, 0.5: advantages 0.75, -0.75, 0. A group of one, or of equal rewards, has advantage 0.
    The returns equal the advantages.
    """
    members = find_members(batch)
    advantages = torch.zeros_like(members.scores)
    for group in members.unequal():
        scores = members.scores[group]
        advantages[group] = (scores - scores.mean()) * len(group) / (len(group) - 1)
    result = members.spread(advantages.to(batch.token_rewards.dtype), batch.loss_mask)
    return result, result
