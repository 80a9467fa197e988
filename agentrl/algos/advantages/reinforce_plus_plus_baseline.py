"""REINFORCE++-baseline: rewards minus the group mean, normalised over the batch (arXiv:2501.03262)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, find_members
from agentrl.algos.advantages.normalization import standardised, whitened


def reinforce_plus_plus_baseline(batch: AdvantageBatch) -> tuple[Tensor, Tensor]:
    """A = (d - mean(d)) / sqrt(var(d) + 1e-8) over all trained tokens of the batch, d_i = r_i - mean of the group.

    Two rollouts of one token, rewards 1 and 0: d = 0.5, -0.5 and A = 0.7071, -0.7071. Groups of one, and groups of
    equal rewards, have d = 0: their tokens count in the batch's mean and variance, but their advantage is 0. The
    returns equal the advantages.
    """
    members = find_members(batch)
    centred, compared = torch.zeros_like(members.scores), torch.zeros_like(members.valid)
    for group in members.unequal():
        centred[group], compared[group] = standardised(members.scores[group], by_std=False), True
    advantages = whitened(members.spread(centred, batch.loss_mask), members.trained(batch.loss_mask))
    result = torch.where(compared[members.of_row, None], advantages, 0.0).to(batch.token_rewards.dtype)
    return result, result
