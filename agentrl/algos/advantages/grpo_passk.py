"""GRPO for pass@k: only the best rollout of a group has an advantage (arXiv:2503.19595)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, find_members
from agentrl.algos.advantages.normalization import STD_EPSILON


def grpo_passk(batch: AdvantageBatch, *, norm_adv_by_std: bool = True) -> tuple[Tensor, Tensor]:
    """A_i = (max(r) - max(r without i)) / (std(r) + 1e-6). Only a unique best rollout has a nonzero A.

    Rewards 1, 0.4, 0, 0: the first has (1 - 0.4) / 0.4726 = 1.2695, the others have 0. If two rollouts are best, all
    have 0. A group of one has advantage 0. `norm_adv_by_std=False` skips the division. The returns equal the
    advantages.
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
