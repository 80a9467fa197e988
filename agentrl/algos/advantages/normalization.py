"""Standardise rewards within their group, and whiten values over the batch (mean 0, variance 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.advantages.members import Members, equal

STD_EPSILON = 1e-6  # verl has the same two constants
VARIANCE_EPSILON = 1e-8


def standardised(values: Tensor, by_std: bool = True) -> Tensor:
    """(v_i - mean(v)) / (std(v) + 1e-6) for unequal values, [N]; unbiased std. No division if `by_std` is false."""
    centred = values - values.mean()
    return centred / (values.std() + STD_EPSILON) if by_std else centred


def standardised_in_groups(values_MK: Tensor, there_MK: Tensor, members: Members, by_std: bool = True) -> Tensor:
    """Standardise values of rollouts, turns or steps within each group, [M, K]; `there_MK` is false for missing values.

    The result is 0 for a group with one valid rollout, for equal values, for failed rollouts and for missing entries.
    """
    result = torch.zeros_like(values_MK)
    for group in members.comparable():
        there = there_MK[group]
        values = values_MK[group][there]
        if len(values) and not equal(values):
            result[group] = torch.zeros_like(values_MK[group]).masked_scatter(there, standardised(values, by_std))
    return result


def whitened(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """(v - mean(v)) / sqrt(var(v) + 1e-8) over the mask, 0 elsewhere, [B, T]; unbiased variance.

    Values 1, 2, 3: mean 2, variance 1, whitened -1, 0, 1. A single value, or equal values, become 0.
    """
    chosen = values_BT[mask_BT]
    if len(chosen) < 2 or equal(chosen):
        return torch.zeros_like(values_BT)
    return torch.where(mask_BT, values_BT - chosen.mean(), 0.0) / (chosen.var() + VARIANCE_EPSILON).sqrt()
