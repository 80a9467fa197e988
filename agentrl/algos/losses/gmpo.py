"""GMPO: the geometric mean of a sequence's clipped token ratios (Zhao et al. 2025, arXiv:2507.20673)."""

from __future__ import annotations

import torch

from agentrl.algos.kl_divergence import MAX_LOG_RATIO
from agentrl.algos.losses.registry import LossBatch, TokenLoss
from agentrl.algos.options import with_scope


@with_scope("rollout")
def gmpo(batch: LossBatch, *, clip_ratio_low: float = 0.4, clip_ratio_high: float = 0.4) -> TokenLoss:
    """-A exp(mean of l over the sequence), where l is the logarithm of each token's clipped ratio.

    l = min(log r, high) where A > 0, and max(log r, -low) where A < 0. So ratios are clipped to (e^-low, e^high); in
    the paper (e^-0.4, e^0.4). All tokens of a sequence have the same loss; their mean is the loss of the sequence
    (`seq-mean-token-mean`). A sequence is a rollout, with all its trajectories.

    Metrics: `pg_clipfrac`, share of tokens whose ratio was clipped; `ppo_kl`, the k1 estimate of KL(old || policy);
    `ratio_mean`, mean of the geometric means.
    """
    log_ratio, sign = batch.log_ratio(), batch.advantages.sign()
    inside = log_ratio.clamp(-clip_ratio_low, clip_ratio_high)
    bounded = sign * torch.minimum(sign * log_ratio, sign * inside)
    ratio = batch.rollout_means(bounded).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped = (sign * log_ratio > sign * inside).to(ratio.dtype)
    metrics = {"pg_clipfrac": clipped, "ppo_kl": -log_ratio, "ratio_mean": ratio.expand_as(log_ratio)}
    return -batch.advantages * ratio, metrics
