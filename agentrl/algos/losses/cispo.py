"""CISPO: clips the importance weight, but every token keeps its gradient (MiniMax 2025, arXiv:2506.13585)."""

from __future__ import annotations

from agentrl.algos.losses.registry import LossBatch, TokenLoss


def cispo(batch: LossBatch, *, clip_ratio_low: float = 1.0, clip_ratio_high: float = 4.0) -> TokenLoss:
    """-sg(clip(r, 1 - low, 1 + high)) A log p with r = policy / old policy; sg stops the gradient.

    As in the paper, there is no lower bound by default: low = 1 means a bound of 0. The paper does not report its upper
    bound; 5 is the bound of ScaleRL (Khatri et al. 2025, arXiv:2510.13786).

    Metrics: `pg_clipfrac`, share of tokens whose ratio was clipped; `ppo_kl`, the k1 estimate of KL(old || policy);
    `ratio_mean`.
    """
    log_ratio = batch.bounded_log_ratio()
    ratio = log_ratio.exp().detach()
    weight = ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    metrics = {"pg_clipfrac": (weight != ratio).to(ratio.dtype), "ppo_kl": -log_ratio, "ratio_mean": ratio}
    return -weight * batch.advantages * batch.logprobs, metrics
