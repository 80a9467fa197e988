"""REINFORCE, without clipping (Williams 1992, doi:10.1007/BF00992696). Also the loss of GPG (arXiv:2504.02546)."""

from __future__ import annotations

from agentrl.algos.losses.registry import LossBatch, TokenLoss


def reinforce(batch: LossBatch) -> TokenLoss:
    """-A log p; off-policy samples also need importance weights.

    Metrics, if there are old log-probabilities: `ppo_kl`, the k1 estimate of KL(old || policy); `ratio_mean`.
    """
    losses = -batch.advantages * batch.logprobs
    if batch.old_logprobs is None:
        return losses, {}
    log_ratio = batch.bounded_log_ratio()
    return losses, {"ppo_kl": -log_ratio, "ratio_mean": log_ratio.exp()}
