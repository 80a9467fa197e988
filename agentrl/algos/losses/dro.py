"""DRO: a quadratic penalty on the log-ratio instead of clipping (Richemond et al. 2024, arXiv:2405.19107)."""

from __future__ import annotations

from agentrl.algos.losses.registry import LossBatch, TokenLoss


def dro(batch: LossBatch, *, dro_beta: float = 1.0) -> TokenLoss:
    """-A log p + beta / 2 (log(policy / old policy))^2: same gradient as the paper's squared loss divided by beta.

    Metric: `ppo_kl`, the k1 estimate of KL(old || policy).
    """
    log_ratio = batch.bounded_log_ratio()
    return -batch.advantages * batch.logprobs + dro_beta / 2 * log_ratio.square(), {"ppo_kl": -log_ratio}
