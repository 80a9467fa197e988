"""Rewards compared with those of their group, and numbers of a whole batch brought to mean 0 and variance 1."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.members import Members, equal

STD_EPSILON = 1e-6  # both as in verl
VARIANCE_EPSILON = 1e-8


def standardised(values: Tensor, by_std: bool = True) -> Tensor:
    """(v_i - mean(v)) / (std(v) + 1e-6) of values [N] that differ; unbiased std. Without `by_std` only centred."""
    centred = values - values.mean()
    return centred / (values.std() + STD_EPSILON) if by_std else centred


def standardised_in_groups(values_MK: Tensor, there_MK: Tensor, members: Members, by_std: bool = True) -> Tensor:
    """[M, K]: values of rollouts, turns or steps, standardised over all of a group that are there.

    0 where a group has one valid rollout, where all of its values are equal, for failed rollouts and where nothing is.
    """
    result = torch.zeros_like(values_MK)
    for group in members.comparable():
        there = there_MK[group]
        values = values_MK[group][there]
        if len(values) and not equal(values):
            result[group] = torch.zeros_like(values_MK[group]).masked_scatter(there, standardised(values, by_std))
    return result


def whitened(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T]: (v - mean(v)) / sqrt(var(v) + 1e-8) over the mask, 0 off it; unbiased variance.

    1, 2, 3: mean 2, variance 1, whitened -1, 0, 1. Fewer than two values, or equal ones, become 0.
    """
    chosen = values_BT[mask_BT]
    if len(chosen) < 2 or equal(chosen):
        return torch.zeros_like(values_BT)
    return torch.where(mask_BT, values_BT - chosen.mean(), 0.0) / (chosen.var() + VARIANCE_EPSILON).sqrt()
