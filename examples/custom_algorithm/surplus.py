"""An advantage estimator and a policy loss of one's own: scores against a fixed threshold, and ratios that are capped.

    agentrl train +experiment=calculator algorithm.adv_estimator=examples/custom_algorithm/surplus.py:surplus \
        algorithm.adv_options.threshold=0.3 \
        actor.policy_loss.loss_mode=examples/custom_algorithm/surplus.py:unclipped actor.policy_loss.options.cap=2
"""

from __future__ import annotations

from torch import Tensor

from agentrl.algos.advantages import AdvantageBatch, find_members
from agentrl.algos.losses import LossBatch


def surplus(batch: AdvantageBatch, *, threshold: float = 0.5) -> tuple[Tensor, Tensor]:
    """What a rollout's score is above `threshold`, on each of its trained tokens; [B, T] both."""
    members = find_members(batch)
    advantages = members.spread((members.scores - threshold) * members.valid, batch.loss_mask)
    return advantages, advantages


def unclipped(batch: LossBatch, *, cap: float = 5.0) -> tuple[Tensor, dict[str, Tensor]]:
    """-A min(r, cap), r = policy / old policy, of each token, [B, T]; beyond the cap a token has no gradient."""
    ratio = batch.bounded_log_ratio().exp()
    return -batch.advantages * ratio.clamp(max=cap), {"ratio_mean": ratio}
