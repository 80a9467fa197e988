"""Dr. GRPO: GRPO without the division by std, which favours tasks that are easy or hard (arXiv:2503.20783)."""

from __future__ import annotations

from torch import Tensor

from agentrl.algos.grpo import grpo
from agentrl.algos.members import AdvantageBatch


def dr_grpo(batch: AdvantageBatch) -> tuple[Tensor, Tensor]:
    """A_i = r_i - mean(r) over the valid rollouts of the group.

    Rewards 1, 0, 0, 1: advantages 0.5, -0.5, -0.5, 0.5. The paper's other half, a constant length in place of each
    rollout's own, is the aggregation `seq-mean-token-sum-norm`. Returns and advantages are the same.
    """
    return grpo(batch, norm_adv_by_std=False)
