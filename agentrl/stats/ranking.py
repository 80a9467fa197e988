"""Ranking quality of scores: area under the ROC curve, and rank correlation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]


def area_under_curve(scores: Sequence[float], outcomes: Sequence[bool]) -> float | None:
    """Probability that a success scores above a failure; ties count half (Hanley & McNeil 1982).

    Scores 1, 2, 2, 3 with outcomes 0, 0, 1, 1: (1 + 1/2 + 1 + 1) / 4 = 0.875.

    Returns:
        None if there are only successes, or only failures.
    """
    good = np.asarray(outcomes, dtype=bool)
    num_good, num_bad = int(good.sum()), int((~good).sum())
    if not (num_good and num_bad):
        return None
    rank_sum = float(mean_ranks(scores)[good].sum())
    return (rank_sum - num_good * (num_good + 1) / 2) / (num_good * num_bad)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rho: correlation of the ranks, with mean ranks for ties. None if all values of one list are equal."""
    ranks = [mean_ranks(values) for values in (one, other)]
    if any(not len(each) or np.ptp(each) == 0 for each in ranks):
        return None
    centred = [each - each.mean() for each in ranks]
    norm = np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum())
    return float((centred[0] * centred[1]).sum() / norm)


def mean_ranks(values: Sequence[float]) -> Floats:
    """Return the ranks of the values, counted from 1, [N]. Equal values all get the mean of their ranks."""
    array = np.asarray(values, dtype=np.float64)
    _, places, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2)[places]
    return ranks
