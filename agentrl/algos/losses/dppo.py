"""DPPO: a trust region by divergence instead of ratio clipping (Qi et al. 2026, arXiv:2602.04879)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.losses.registry import LossBatch, TokenLoss
from agentrl.errors import ConfigError, Kind, suggestion

RADIUS = {"tv": 0.15, "kl": 0.05}
"""Largest allowed divergence of a token's distribution, as in the paper's experiments."""


def dppo(
    batch: LossBatch,
    *,
    divergence: str = "tv",
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 20.0,
) -> TokenLoss:
    """-sg(min(r, c)) A log p with r = policy / old policy, c = clip_ratio_c; 0 for a token outside the trust region.

    A token is outside if its divergence is above the radius and its update would increase the divergence. The radius is
    `clip_ratio_high` for A > 0, else `clip_ratio_low` (default: see `RADIUS`). The divergence is between distributions
    over two outcomes: the sampled token, or any other token.

        tv   |p - p_old|
        kl   p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p))

    Metrics: `pg_clipfrac`, share of tokens outside; `pg_clipfrac_lower`, share of tokens that are not outside and whose
    ratio was clipped to c; `ppo_kl`, the k1 estimate of KL(old || policy); `ratio_mean`.

    Raises:
        ConfigError: there is no such divergence.
    """
    if divergence not in RADIUS:
        raise ConfigError.at(
            "actor.policy_loss.options",
            Kind.NOT_FOUND,
            f"policy loss 'dppo' has no divergence '{divergence}': {suggestion(divergence, RADIUS)}",
        )
    log_ratio, logprobs = batch.log_ratio().detach(), batch.logprobs.detach()
    policy, old = logprobs.exp(), (logprobs - log_ratio).exp()
    distance = (policy - old).abs() if divergence == "tv" else _binary_kl(old, policy, log_ratio)
    low, high = (RADIUS[divergence] if each is None else each for each in (clip_ratio_low, clip_ratio_high))
    rises = batch.advantages > 0
    outside = torch.where(rises, (distance > high) & (policy > old), (distance > low) & (policy < old))
    ratio = batch.bounded_log_ratio().detach().exp()
    losses = -ratio.clamp(max=clip_ratio_c) * batch.advantages * batch.logprobs
    metrics = {
        "pg_clipfrac": outside.to(ratio.dtype),
        "pg_clipfrac_lower": ((ratio > clip_ratio_c) & ~outside).to(ratio.dtype),
        "ppo_kl": -log_ratio,
        "ratio_mean": ratio,
    }
    return torch.where(outside, 0.0, losses), metrics


def dppo_tv(
    batch: LossBatch, *, clip_ratio_low: float = 0.15, clip_ratio_high: float = 0.15, clip_ratio_c: float = 20.0
) -> TokenLoss:
    """`dppo` with total variation."""
    return dppo(
        batch,
        divergence="tv",
        clip_ratio_low=clip_ratio_low,
        clip_ratio_high=clip_ratio_high,
        clip_ratio_c=clip_ratio_c,
    )


def dppo_kl(
    batch: LossBatch, *, clip_ratio_low: float = 0.05, clip_ratio_high: float = 0.05, clip_ratio_c: float = 20.0
) -> TokenLoss:
    """`dppo` with KL divergence."""
    return dppo(
        batch,
        divergence="kl",
        clip_ratio_low=clip_ratio_low,
        clip_ratio_high=clip_ratio_high,
        clip_ratio_c=clip_ratio_c,
    )


def _binary_kl(old: Tensor, policy: Tensor, log_ratio: Tensor) -> Tensor:
    tiny = 1e-8  # the total probability of the other tokens may round to 0
    return -old * log_ratio + (1 - old) * ((1 - old + tiny) / (1 - policy + tiny)).log()
