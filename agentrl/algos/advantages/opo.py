"""OPO: the variance-minimal baseline, a mean reward weighted by rollout length (Hao et al. 2025, arXiv:2505.23585)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, find_members


def opo(batch: AdvantageBatch) -> tuple[Tensor, Tensor]:
    """A_i = r_i - sum(l * r) / sum(l) over the valid rollouts of the group; l is the number of trained tokens.

    Rewards 1 and 0, lengths 1 and 3: baseline 0.25, advantages 0.75, -0.25. A group of one, or of equal rewards, has
    advantage 0. The returns equal the advantages.
    """
    members = find_members(batch)
    lengths = torch.zeros_like(members.scores).index_add(0, members.of_row, batch.loss_mask.bool().sum(-1).double())
    advantages = torch.zeros_like(members.scores)
    for group in members.unequal():
        baseline = (lengths[group] * members.scores[group]).sum() / lengths[group].sum()
        advantages[group] = members.scores[group] - baseline
    result = members.spread(advantages.to(batch.token_rewards.dtype), batch.loss_mask)
    return result, result
