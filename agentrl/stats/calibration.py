"""Calibration of predicted probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NUM_BINS = 10


def expected_calibration_error(
    probabilities: Sequence[float], outcomes: Sequence[float], num_bins: int = NUM_BINS
) -> float:
    """Mean of |share of successes - mean probability| over bins of equal width, weighted by bin size.

    (Naeini et al. 2015; Guo et al. 2017, arXiv:1706.04599.) With two bins, probabilities 0.1, 0.3, 0.9 and outcomes
    0, 1, 1: bins [0, 0.5) and [0.5, 1], so (2 |1/2 - 0.2| + 1 |1 - 0.9|) / 3 = 0.2333.

    Raises:
        ValueError: there are no probabilities.
    """
    if not len(probabilities):
        raise ValueError("expected at least one probability")
    predicted, actual = np.asarray(probabilities, dtype=np.float64), np.asarray(outcomes, dtype=np.float64)
    bins = np.minimum((predicted * num_bins).astype(int), num_bins - 1)
    gaps = np.bincount(bins, weights=actual - predicted, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(predicted))


def brier_score(probabilities: Sequence[float], outcomes: Sequence[float]) -> float:
    """Mean of (probability - outcome)^2 (Brier 1950).

    Raises:
        ValueError: there are no probabilities.
    """
    if not len(probabilities):
        raise ValueError("expected at least one probability")
    predicted, actual = np.asarray(probabilities, dtype=np.float64), np.asarray(outcomes, dtype=np.float64)
    return float(((predicted - actual) ** 2).mean())
