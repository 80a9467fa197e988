"""Means and differences with their intervals, where rollouts of one task resemble each other.

The tasks are the sample, not the rollouts: eight rollouts of one task say less than eight tasks. With G clusters
(tasks) of N rollouts in all, m their mean and S_g the sum of (x - m) over cluster g, the standard error is the
cluster-robust one (Miller 2024, arXiv:2411.00640) with the usual factor for few clusters:

    SE^2 = G / (G - 1) * sum_g S_g^2 / N^2

- In general the interval is m ± t SE, t of Student's distribution with G - 1 degrees of freedom.
- Of a share (every value 0 or 1) it is Wilson's, which stays within 0 and 1, for m (1 - m) / SE^2 rollouts: as many as
  would say as much if they were independent (Dean & Pagano 2015). Where each cluster is one rollout, these are G; where
  all values are equal nothing shows how alike siblings are, and the G clusters count once each.
- No interval can be told from one cluster, nor from other values where no cluster differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from agentrl.estimates.base import Estimate
from agentrl.estimates.student import t_quantile

Floats: TypeAlias = NDArray[np.float64]


def mean_estimate(
    clusters: Sequence[Sequence[float] | Floats], level: float = 0.95, share: bool | None = None
) -> Estimate:
    """The mean over all rollouts; each counts the same.

    Args:
        clusters: the values of each task's rollouts; a task without any is left out.
        share: every value lies between 0 and 1 by its nature, so the interval does; None: it does if each is 0 or 1.

    Raises:
        ValueError: there are no values.
    """
    sums, sizes, zero_or_one = _summed(clusters)
    share = zero_or_one if share is None else share
    mean = float(sums.sum() / sizes.sum())
    return _estimate(mean, (sums - mean * sizes) / sizes.mean(), int(sizes.sum()), level, share)


def task_mean_estimate(
    clusters: Sequence[Sequence[float] | Floats], level: float = 0.95, share: bool | None = None
) -> Estimate:
    """The mean over tasks of the mean of each; each task counts the same, however many rollouts it has.

    Args:
        clusters, share: as for `mean_estimate`.

    Raises:
        ValueError: there are no values.
    """
    sums, sizes, zero_or_one = _summed(clusters)
    share = zero_or_one if share is None else share
    means = sums / sizes
    return _estimate(float(means.mean()), means - means.mean(), int(sizes.sum()), level, share)


def paired_difference(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], level: float = 0.95) -> Estimate:
    """The mean over tasks of (mean of the second side - mean of the first), each task held against itself.

    Args:
        pairs: for each task the values of both sides; a task without a value on one of them is left out.

    Raises:
        ValueError: no task has values on both sides.
    """
    return task_mean_estimate([[fmean(b) - fmean(a)] for a, b in pairs if a and b], level, share=False)


def bootstrap(
    values: Floats, statistic: Callable[[Floats], float], level: float = 0.95, seed: int = 0, num: int = 2000
) -> Estimate:
    """Any statistic, its interval by drawing observations anew: bias-corrected and accelerated (Efron 1987).

    Args:
        values: [observations, ...]; observations are independent of each other, so they are tasks.
        statistic: of such an array with as many observations, some of them several times.
        num: how often they are drawn.
    """
    count = len(values)
    value = statistic(values)
    if count < 2:
        return Estimate(value, None, None, count)
    random = np.random.default_rng(seed)
    drawn = np.array([statistic(values[random.integers(count, size=count)]) for _ in range(num)])
    left_out = np.array([statistic(np.delete(values, index, axis=0)) for index in range(count)])
    if not np.isfinite([*drawn, *left_out]).all() or not np.ptp(drawn):
        return Estimate(value, None, None, count)
    ends = _bca_probabilities(value, drawn, left_out, level)
    if ends is None:
        return Estimate(value, None, None, count)
    low, high = np.quantile(drawn, ends)
    return Estimate(value, float(low), float(high), count)


def _bca_probabilities(value: float, drawn: Floats, left_out: Floats, level: float) -> list[float] | None:
    """Which quantiles of `drawn` are the ends: moved by its bias, and by the skewness that the jackknife shows.

    None where so much skewness leaves none: an end would lie beyond where the correction has its pole.
    """
    normal = NormalDist()
    below = float((drawn < value).mean() + (drawn == value).mean() / 2)
    bias = normal.inv_cdf(min(max(below, 1 / len(drawn)), 1 - 1 / len(drawn)))
    pulls = left_out.mean() - left_out
    spread = float((pulls**2).sum() ** 1.5)
    skew = float((pulls**3).sum()) / (6 * spread) if spread else 0.0
    ends = (normal.inv_cdf((1 - level) / 2), normal.inv_cdf((1 + level) / 2))
    moved = [(bias + end, 1 - skew * (bias + end)) for end in ends]
    if min(left for _, left in moved) <= 0:
        return None
    return [normal.cdf(bias + shift / left) for shift, left in moved]


def _summed(clusters: Sequence[Sequence[float] | Floats]) -> tuple[Floats, Floats, bool]:
    """The sum and the size of each cluster that has values, [clusters]; and whether every value is 0 or 1."""
    kept = [np.asarray(cluster, np.float64) for cluster in clusters if len(cluster)]
    if not kept:
        raise ValueError("an estimate needs at least one value")
    share = all(bool(((values == 0) | (values == 1)).all()) for values in kept)
    return np.array([values.sum() for values in kept]), np.array([len(values) for values in kept], np.float64), share


def _estimate(mean: float, influences: Floats, num_rollouts: int, level: float, share: bool) -> Estimate:
    """From what each cluster adds to the mean, [clusters]: their mean is 0."""
    count = len(influences)
    if count < 2:
        return Estimate(mean, None, None, count)
    variance = float((influences**2).sum()) / (count * (count - 1))
    if share:
        return Estimate(mean, *_wilson(mean, variance, count, num_rollouts, level), count)
    if variance <= (1e-12 * mean) ** 2:  # all equal; what is left is rounding
        return Estimate(mean, None, None, count)
    reach = t_quantile(level, count - 1) * math.sqrt(variance)
    return Estimate(mean, mean - reach, mean + reach, count)


def _wilson(mean: float, variance: float, count: int, num_rollouts: int, level: float) -> tuple[float, float]:
    spread = mean * (1 - mean)
    if num_rollouts == count or spread <= 0:
        size, quantile = float(count), NormalDist().inv_cdf((1 + level) / 2)
    else:
        size, quantile = min(spread / variance if variance else math.inf, num_rollouts), t_quantile(level, count - 1)
    shrink = 1 + quantile**2 / size
    middle = (mean + quantile**2 / (2 * size)) / shrink
    reach = quantile / shrink * math.sqrt(max(spread, 0.0) / size + quantile**2 / (4 * size**2))
    return max(0.0, min(mean, middle - reach)), min(1.0, max(mean, middle + reach))  # rounding must not leave m outside
