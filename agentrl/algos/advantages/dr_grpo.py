"""Dr. GRPO: GRPO without division by std; the division overweights very easy and very hard tasks (arXiv:2503.20783)."""

from __future__ import annotations

from torch import Tensor

from agentrl.algos.advantages.grpo import grpo
from agentrl.algos.advantages.members import AdvantageBatch


def dr_grpo(batch: AdvantageBatch) -> tuple[Tensor, Tensor]:
    """A_i = r_i - mean(r) over the valid rollouts of the group.

    Rewards 1, 0, 0, 1: advantages 0.5, -0.5, -0.5, 0.5. The paper also divides the loss by a constant instead of
    each rollout's length: use the aggregation `seq-mean-token-sum-norm` for this. The returns equal the advantages.
    """
    return grpo(batch, norm_adv_by_std=False)
