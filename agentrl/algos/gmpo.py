"""GMPO: the geometric mean of a sequence's clipped token ratios (Zhao et al. 2025, arXiv:2507.20673)."""

from __future__ import annotations

import torch

from agentrl.algos.divergence import MAX_LOG_RATIO
from agentrl.algos.losses import LossBatch, TokenLoss
from agentrl.algos.options import looking_at


@looking_at("rollout")
def gmpo(batch: LossBatch, *, clip_ratio_low: float = 0.4, clip_ratio_high: float = 0.4) -> TokenLoss:
    """-A exp(mean over the sequence of l), l the logarithm of each token's clipped ratio.

    l = min(log r, high) where A > 0, and max(log r, -low) where A < 0; so ratios are clipped to (e^-low, e^high), the
    paper's (e^-0.4, e^0.4). Each token of a sequence has the same loss, and the mean over its tokens is the
    sequence's (`seq-mean-token-mean`). A sequence is a rollout, with all its trajectories.

    Metrics: `pg_clipfrac`, share of tokens whose ratio was clipped; `ppo_kl`, the k1 estimate of KL(old || policy);
    `ratio_mean`, of the geometric mean.
    """
    log_ratio, sign = batch.log_ratio(), batch.advantages.sign()
    inside = log_ratio.clamp(-clip_ratio_low, clip_ratio_high)
    bounded = sign * torch.minimum(sign * log_ratio, sign * inside)
    ratio = batch.rollout_means(bounded).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped = (sign * log_ratio > sign * inside).to(ratio.dtype)
    metrics = {"pg_clipfrac": clipped, "ppo_kl": -log_ratio, "ratio_mean": ratio.expand_as(log_ratio)}
    return -batch.advantages * ratio, metrics
