"""A custom advantage estimator (score minus a fixed threshold) and a custom policy loss (capped ratios).

    agentrl train +experiment=calculator algorithm.adv_estimator=examples/custom_algorithm/surplus.py:surplus \
        algorithm.adv_options.threshold=0.3 \
        actor.policy_loss.loss_mode=examples/custom_algorithm/surplus.py:unclipped actor.policy_loss.options.cap=2
"""

from __future__ import annotations

from torch import Tensor

from agentrl.algos.advantages import AdvantageBatch, find_members
from agentrl.algos.losses import LossBatch


def surplus(batch: AdvantageBatch, *, threshold: float = 0.5) -> tuple[Tensor, Tensor]:
    """Return the score minus `threshold` for each trained token, as advantages and as returns, [B, T] each."""
    members = find_members(batch)
    advantages = members.spread((members.scores - threshold) * members.valid, batch.loss_mask)
    return advantages, advantages


def unclipped(batch: LossBatch, *, cap: float = 5.0) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -A min(r, cap) per token, [B, T]; r = policy / old policy. Above the cap, a token has no gradient."""
    ratio = batch.bounded_log_ratio().exp()
    return -batch.advantages * ratio.clamp(max=cap), {"ratio_mean": ratio}
