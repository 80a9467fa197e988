"""Importance weights and rejection, from the ratio between the policy and the behaviour policy.

The methods are those of Liu et al. 2025 (richardli.xyz/rl-collapse) and verl. Axes: N trained tokens of a step,
concatenated; R rollouts.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log

import torch
from torch import Tensor

from agentrl.algos.kl_divergence import MAX_LOG_RATIO
from agentrl.config.correction_bounds import Rejection

DIVERGENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda log_ratio: -log_ratio,
    "k2": lambda log_ratio: log_ratio.square() / 2,
    "k3": lambda log_ratio: log_ratio.expm1() - log_ratio,
}
"""Per-token estimates of KL(behaviour || policy) from log(policy / behaviour) (joschu.net/blog/kl-approx.html)."""


def kept(rejection: Rejection, log_ratio_N: Tensor, rollout_N: Tensor) -> Tensor:
    """Mask of the kept tokens, [N] bool. A `seq_` rejection keeps or drops complete rollouts.

        token_k1..3      divergence of the token
        seq_sum_k1..3    sum of the divergence over the rollout (for k1: log(behaviour / policy) of the rollout)
        seq_mean_k1..3   mean over the rollout's trained tokens (for k1: the log of the geometric mean of the ratios)
        seq_max_k2..3    maximum over the rollout

    For k1, the ratio behaviour / policy has a lower and an upper bound, compared as logarithms. k2 and k3 have only an
    upper bound. NaN is rejected.
    """
    level, _, name = rejection.name.rpartition("_")
    divergence_N = DIVERGENCES[name](log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    statistic, unit_N = _units(level, divergence_N, rollout_N)
    lower, upper = rejection.bounds
    inside_U = statistic <= upper if lower is None else (statistic >= log(lower)) & (statistic <= log(upper))
    return inside_U[unit_N]


def _units(level: str, values_N: Tensor, rollout_N: Tensor) -> tuple[Tensor, Tensor]:
    if level == "token":
        return values_N, torch.arange(len(values_N), device=values_N.device)
    total_R = sums(values_N, rollout_N)
    if level == "seq_mean":
        return total_R / sums(torch.ones_like(values_N), rollout_N), rollout_N
    if level == "seq_max":
        return total_R.scatter_reduce(0, rollout_N, values_N, "amax", include_self=False), rollout_N
    return total_R, rollout_N


def ratios(level: str, log_ratio_N: Tensor, rollout_N: Tensor) -> tuple[Tensor, Tensor]:
    """policy / behaviour of each unit, [U], and the unit of each token, [N].

    Args:
        level: token: each token is a unit. sequence: each rollout is a unit; its ratio is the product over its tokens.
        log_ratio_N: log(policy / behaviour); clamped to ±20 before exp.
        rollout_N: the number of each token's rollout, from 0.
    """
    if level == "token":
        return _exp(log_ratio_N), torch.arange(len(log_ratio_N), device=log_ratio_N.device)
    return _exp(sums(log_ratio_N, rollout_N)), rollout_N


def sums(values_N: Tensor, rollout_N: Tensor) -> Tensor:
    """Sum over each rollout's tokens, [R]."""
    num_rollouts = int(rollout_N.max()) + 1 if len(rollout_N) else 0
    return values_N.new_zeros(num_rollouts).index_add(0, rollout_N, values_N)


def truncated(ratios_U: Tensor, upper: float) -> Tensor:
    """min(r, upper). Ratios 0.5, 1, 3 with bound 2: 0.5, 1, 2."""
    return ratios_U.clamp(max=upper)


def masked(ratios_U: Tensor, lower: float, upper: float) -> Tensor:
    """r where lower <= r <= upper, else 0. Ratios 0.4, 1, 6 with bounds 0.5 and 5: 0, 1, 0."""
    return torch.where((ratios_U >= lower) & (ratios_U <= upper), ratios_U, 0.0)


def normalised(weights_U: Tensor) -> Tensor:
    """Divide weights by their mean, so that the mean is 1. If all weights are 0, they stay 0."""
    mean = weights_U.mean()
    return weights_U / mean if mean > 0 else weights_U


def effective_share(weights_U: Tensor) -> Tensor:
    """Effective sample size / number of units, []: mean(w)^2 / mean(w^2) (Kong 1992).

    The result is 1 if all weights are equal, but 0 if all weights are 0.
    """
    square = weights_U.square().mean()
    return torch.where(square > 0, weights_U.mean().square() / square, 0.0)


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
