"""Importance weights: how much more likely the policy is to sample a token, or a rollout, than the policy that did.

Truncation: Ionides 2008 (doi:10.1198/106186008X320456); for engines, Yao et al. 2025
(fengyao.notion.site/off-policy-rl). Masking: IcePop (Ling team 2025, arXiv:2510.18855). Weights are constants: no
gradient goes through them.

Axes: N trained tokens of a step in a row, U units: its tokens or its rollouts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.divergence import MAX_LOG_RATIO


def ratios(level: str, log_ratio_N: Tensor, rollout_N: Tensor) -> tuple[Tensor, Tensor]:
    """policy / behaviour of each unit, [U], and the unit of each token, [N].

    Args:
        level: token: every token is a unit. sequence: every rollout is, and its ratio is the product over its tokens.
        log_ratio_N: log(policy / behaviour); ratios are cut to exp(±20).
        rollout_N: the number of each token's rollout, from 0.
    """
    if level == "token":
        return _exp(log_ratio_N), torch.arange(len(log_ratio_N), device=log_ratio_N.device)
    return _exp(sums(log_ratio_N, rollout_N)), rollout_N


def sums(values_N: Tensor, rollout_N: Tensor) -> Tensor:
    """[R]: the sum over each rollout's tokens."""
    num_rollouts = int(rollout_N.max()) + 1 if len(rollout_N) else 0
    return values_N.new_zeros(num_rollouts).index_add(0, rollout_N, values_N)


def truncated(ratios_U: Tensor, upper: float) -> Tensor:
    """min(r, upper). Ratios 0.5, 1, 3 at 2: 0.5, 1, 2."""
    return ratios_U.clamp(max=upper)


def masked(ratios_U: Tensor, lower: float, upper: float) -> Tensor:
    """r where lower <= r <= upper, else 0. Ratios 0.4, 1, 6 at 0.5 and 5: 0, 1, 0."""
    return torch.where((ratios_U >= lower) & (ratios_U <= upper), ratios_U, 0.0)


def normalised(weights_U: Tensor) -> Tensor:
    """Divided by their mean, which so becomes 1; where all are 0 they stay so."""
    mean = weights_U.mean()
    return weights_U / mean if mean > 0 else weights_U


def effective_share(weights_U: Tensor) -> Tensor:
    """[]: the effective sample size over the number of units, mean(w)^2 / mean(w^2) (Kong 1992); 1 if all are equal."""
    square = weights_U.square().mean()
    return torch.where(square > 0, weights_U.mean().square() / square, 0.0)


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
