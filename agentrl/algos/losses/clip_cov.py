"""Clip-Cov and KL-Cov: limit updates on the tokens that reduce entropy fastest (Cui et al. 2025, arXiv:2505.22617).

These tokens contribute most to the covariance of log-probability and advantage over all trained tokens. Ties and
random draws are decided only by the tokens' values, not by the order of the batch. Axis: N trained tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.losses.registry import LossBatch, TokenLoss
from agentrl.algos.losses.vanilla import clip
from agentrl.algos.options import with_scope
from agentrl.errors import ConfigError, Kind


@with_scope("batch")
def clip_cov(
    batch: LossBatch,
    *,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    clip_cov_ratio: float = 2e-4,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
) -> TokenLoss:
    """PPO's clipped loss, but 0 for a share `clip_cov_ratio` of all tokens, at least one token.

    These tokens are drawn from the tokens that PPO does not clip and whose covariance is between `clip_cov_lb` and
    `clip_cov_ub`. If there are too few such tokens, all of them are drawn.

    Metrics: `pg_clipfrac`, share of clipped tokens; `cov_frac`, share of tokens with loss 0 because of their
    covariance; `ppo_kl`, the k1 estimate of KL(old || policy); `ratio_mean`.

    Raises:
        ConfigError: `clip_cov_lb` is not below `clip_cov_ub`.
    """
    if clip_cov_lb >= clip_cov_ub:
        raise ConfigError.at(
            "actor.policy_loss.clip_cov_lb",
            Kind.WRONG_VALUE,
            f"clip_cov_lb must be below clip_cov_ub, but {clip_cov_lb:g} is not below {clip_cov_ub:g}",
        )
    log_ratio = batch.bounded_log_ratio()
    ratio = log_ratio.exp()
    losses, clipped = clip(ratio, batch.advantages, clip_ratio_low, clip_ratio_high)
    covariance_N = _covariances(batch)
    within_N = (covariance_N > clip_cov_lb) & (covariance_N < clip_cov_ub) & ~clipped[batch.loss_mask.bool()]
    candidates = _in_order(batch, covariance_N)
    candidates = candidates[within_N[candidates]]
    # a separate generator with a fixed seed makes draws reproducible, and leaves the global generator unchanged
    drawn = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(0))[: _share(batch, clip_cov_ratio)]
    held = _marked(batch, candidates[drawn.to(candidates.device)])
    return torch.where(held, 0.0, losses), {
        "pg_clipfrac": clipped.to(ratio.dtype),
        "cov_frac": held.to(ratio.dtype),
        "ppo_kl": -log_ratio,
        "ratio_mean": ratio,
    }


@with_scope("batch")
def kl_cov(batch: LossBatch, *, kl_cov_ratio: float = 2e-4, ppo_kl_coef: float = 1.0) -> TokenLoss:
    """-A r, plus `ppo_kl_coef` |log r| for the share `kl_cov_ratio` of tokens with the largest covariance.

    At least one token is penalised. r = policy / old policy. Where r is exactly 1, as before the first update of a step
    with `decoupled` ratios (see `PolicyLoss`), the penalty has no gradient.

    Metrics: `cov_frac`, share of penalised tokens; `ppo_kl`; `ratio_mean`.
    """
    log_ratio = batch.bounded_log_ratio()
    ratio = log_ratio.exp()
    covariance_N = _covariances(batch)
    held = _marked(batch, _in_order(batch, covariance_N)[: _share(batch, kl_cov_ratio)])
    losses = -batch.advantages * ratio + ppo_kl_coef * torch.where(held, log_ratio.abs(), 0.0)
    return losses, {"cov_frac": held.to(ratio.dtype), "ppo_kl": -log_ratio, "ratio_mean": ratio}


def _covariances(batch: LossBatch) -> Tensor:
    """(A - mean of A) (log p - mean of log p), [N], in the order of the mask."""
    mask = batch.loss_mask.bool()
    advantages_N, logprobs_N = batch.advantages[mask], batch.logprobs.detach()[mask]
    return (advantages_N - advantages_N.mean()) * (logprobs_N - logprobs_N.mean())


def _in_order(batch: LossBatch, covariance_N: Tensor) -> Tensor:
    """Indices of the N tokens, largest covariance first. Ties are ordered by advantage, log-probability and ratio."""
    mask, places = batch.loss_mask.bool(), torch.arange(len(covariance_N), device=covariance_N.device)
    for key_N in (batch.log_ratio()[mask], batch.logprobs[mask], batch.advantages[mask], -covariance_N):
        places = places[key_N.detach()[places].argsort(stable=True)]
    return places


def _share(batch: LossBatch, share: float) -> int:
    return max(1, int(share * int(batch.loss_mask.bool().sum())))


def _marked(batch: LossBatch, places: Tensor) -> Tensor:
    """Mask that is true at the given indices of the N trained tokens, [B, T] bool."""
    mask = batch.loss_mask.bool()
    marked_N = torch.zeros(int(mask.sum()), dtype=torch.bool, device=mask.device).index_fill(0, places, True)
    return torch.zeros_like(mask).masked_scatter(mask, marked_N)
