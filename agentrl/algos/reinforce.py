"""REINFORCE (Williams 1992, doi:10.1007/BF00992696): nothing is clipped."""

from __future__ import annotations

from agentrl.algos.divergence import MAX_LOG_RATIO
from agentrl.algos.losses import LossBatch, TokenLoss


def reinforce(batch: LossBatch) -> TokenLoss:
    """-A log p; an off-policy sample needs importance weights beside it.

    Metrics: `ppo_kl`, the k1 estimate of KL(old || policy); `ratio_mean`.
    """
    log_ratio = batch.log_ratio().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return -batch.advantages * batch.logprobs, {"ppo_kl": -log_ratio, "ratio_mean": log_ratio.exp()}
