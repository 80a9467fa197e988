"""SAPO: a smooth gate instead of clipping (Gao et al. 2025, arXiv:2511.20347)."""

from __future__ import annotations

import torch

from agentrl.algos.losses.registry import LossBatch, TokenLoss


def sapo(batch: LossBatch, *, tau_pos: float = 1.0, tau_neg: float = 1.05) -> TokenLoss:
    """-A sigmoid(tau (r - 1)) 4 / tau with r = policy / old policy; tau is tau_pos where A > 0, else tau_neg.

    At r = 1, the loss has the gradient of -A r. The gradient decreases as r moves away from 1, faster for a larger tau.

    Metrics: `ppo_kl`, the k1 estimate of KL(old || policy); `ratio_mean`; `gate_mean`, mean slope of the gate, 1 at
    r = 1.
    """
    log_ratio, advantages = batch.bounded_log_ratio(), batch.advantages
    ratio = log_ratio.exp()
    tau = torch.full_like(ratio, tau_neg).masked_fill(advantages > 0, tau_pos)
    gate = (tau * (ratio - 1)).sigmoid()
    metrics = {"ppo_kl": -log_ratio, "ratio_mean": ratio, "gate_mean": 4 * gate * (1 - gate)}
    return -advantages * gate * 4 / tau, metrics
