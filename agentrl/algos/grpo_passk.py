"""GRPO for pass@k: the best rollout of a group is credited with what it adds to the group (arXiv:2503.19595)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.members import AdvantageBatch, find_members
from agentrl.algos.standardising import STD_EPSILON


def grpo_passk(batch: AdvantageBatch, *, norm_adv_by_std: bool = True) -> tuple[Tensor, Tensor]:
    """A_i = max(r) - max(r without i), over std(r) + 1e-6: not 0 for the best rollout of the group alone.

    Rewards 1, 0.4, 0, 0: the first has (1 - 0.4) / 0.4726 = 1.2695, the others 0; two that are best have 0 both.
    A group of one has 0. Without `norm_adv_by_std` the division is left out. Returns and advantages are the same.
    """
    members = find_members(batch)
    advantages = torch.zeros_like(members.scores)
    for group in members.unequal():
        scores = members.scores[group]
        best, second = scores.topk(2).values
        gain = (best - second) / (scores.std() + STD_EPSILON) if norm_adv_by_std else best - second
        advantages[group[int(scores.argmax())]] = gain
    result = members.spread(advantages.to(batch.token_rewards.dtype), batch.loss_mask)
    return result, result
