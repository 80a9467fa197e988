"""Rejection: which tokens are kept, by how far the policy is from the one that sampled them.

As Liu et al. 2025 (richardli.xyz/rl-collapse) and verl have it. Axes: N trained tokens of a step in a row, R rollouts.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log

import torch
from torch import Tensor

from agentrl.algos.divergence import MAX_LOG_RATIO
from agentrl.algos.importance import sums
from agentrl.config.thresholds import Rejection

DIVERGENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda log_ratio: -log_ratio,
    "k2": lambda log_ratio: log_ratio.square() / 2,
    "k3": lambda log_ratio: log_ratio.expm1() - log_ratio,
}
"""Estimates of KL(behaviour || policy) at a token from log(policy / behaviour) (joschu.net/blog/kl-approx.html)."""


def kept(rejection: Rejection, log_ratio_N: Tensor, rollout_N: Tensor) -> Tensor:
    """[N] bool: whether each token stays. A `seq_` rejection keeps or leaves out rollouts as a whole.

        token_k1..3      the divergence of the token
        seq_sum_k1..3    its sum over the rollout: for k1 log(behaviour / policy) of the whole rollout
        seq_mean_k1..3   its mean over the rollout's trained tokens (for k1 the geometric mean of the ratios)
        seq_max_k2..3    its largest

    The bounds of k1 are of the ratio behaviour / policy and hold their logarithms; others are a largest value. What is
    not a number is left out.
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
