"""PPO's clipped loss (Schulman et al. 2017, arXiv:1707.06347) with dual clip (Ye et al. 2020, arXiv:1912.09729)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.losses.registry import LossBatch, TokenLoss


def vanilla(
    batch: LossBatch, *, clip_ratio_low: float = 0.2, clip_ratio_high: float = 0.2, clip_ratio_c: float = 3.0
) -> TokenLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)) with r = policy / old policy; where A < 0, at most -A c.

    Metrics: `pg_clipfrac`, share of clipped tokens; `pg_clipfrac_lower`, share of tokens bounded by the dual clip;
    `ppo_kl`, the k1 estimate of KL(old || policy); `ratio_mean`.
    """
    log_ratio, advantages = batch.bounded_log_ratio(), batch.advantages
    ratio = log_ratio.exp()
    losses, clipped = clip(ratio, advantages, clip_ratio_low, clip_ratio_high)
    bound = -advantages * clip_ratio_c
    bounded = (advantages < 0) & (losses > bound)
    metrics = {
        "pg_clipfrac": clipped.to(ratio.dtype),
        "pg_clipfrac_lower": bounded.to(ratio.dtype),
        "ppo_kl": -log_ratio,
        "ratio_mean": ratio,
    }
    return torch.where(bounded, bound, losses), metrics


def clip(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """max(-A r, -A clip(r, 1 - low, 1 + high)), and whether the clipped term is larger; [B, T] each."""
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    return torch.maximum(unclipped, clipped), clipped > unclipped
