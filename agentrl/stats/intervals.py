"""Means and differences with confidence intervals, for correlated rollouts of the same task.

The independent observations are tasks, not rollouts: eight rollouts of one task contain less information than eight
tasks. Let G be the number of clusters (tasks), N the total number of rollouts, m the mean of all values x, and S_g the
sum of (x - m) over cluster g. The standard error is cluster-robust (Miller 2024, arXiv:2411.00640), with the usual
factor for few clusters:

    SE^2 = G / (G - 1) * sum_g S_g^2 / N^2

- In general the interval is m ± t SE, with t of Student's distribution with G - 1 degrees of freedom.
- For a share (every value 0 or 1) it is Wilson's interval, which stays within 0 and 1. Wilson's sample size is the
  equivalent number of independent rollouts, m (1 - m) / SE^2, at most N (Dean & Pagano 2015). The sample size is G if
  each cluster is one rollout. It is also G if all values are equal, because the correlation within a task is unknown.
- There is no interval for a single cluster. There is also no interval if the values are not a share and all clusters
  have the same mean.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist, fmean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from agentrl.stats.base import Estimate

Floats: TypeAlias = NDArray[np.float64]

_BATCH = 100
"""Number of bootstrap resamples kept in memory at a time. It does not change results."""


def mean_estimate(
    clusters: Sequence[Sequence[float] | Floats], level: float = 0.95, share: bool | None = None
) -> Estimate:
    """Mean over all rollouts, with equal weights.

    Args:
        clusters: the values of each task's rollouts; tasks without values are ignored.
        share: true: values are always between 0 and 1, so use Wilson's interval. None: true if every value is 0 or 1.

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
    """Mean over tasks of each task's mean. All tasks have equal weights, whatever their number of rollouts.

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
    """Mean over tasks of (mean of b - mean of a), where a and b are two lists of values of the same task.

    Args:
        pairs: (a, b) for each task; tasks in which a or b is empty are ignored.

    Raises:
        ValueError: no task has values on both sides.
    """
    return task_mean_estimate([[fmean(b) - fmean(a)] for a, b in pairs if a and b], level, share=False)


def bootstrap(
    values: Floats, statistic: Callable[[Floats], float], level: float = 0.95, seed: int = 0, num: int = 2000
) -> Estimate:
    """Return any statistic with its bootstrap interval (bias-corrected and accelerated, BCa; Efron 1987).

    Args:
        values: [observations, ...]; observations must be independent of each other, so use one per task.
        statistic: function of one resample, which is an array like `values` in which observations may repeat.
        num: number of resamples.
    """
    from scipy.stats import DegenerateDataWarning  # takes 0.8 s to import
    from scipy.stats import bootstrap as resampled

    value, count = statistic(values), len(values)
    if count < 2:
        return Estimate(value, None, None, count)
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)  # for such data a bound is nan, which is checked below
        found = resampled(
            (np.arange(count),),
            lambda rows: statistic(values[rows]),
            n_resamples=num,
            batch=_BATCH,
            vectorized=False,
            confidence_level=level,
            rng=np.random.default_rng(seed),
        )
    low, high = map(float, found.confidence_interval)
    # scipy does not check the pole of the skewness correction: beyond the pole, the bounds are in the wrong order
    if not np.isfinite([*found.bootstrap_distribution, low, high]).all() or low >= high:
        return Estimate(value, None, None, count)
    return Estimate(value, low, high, count)


def _summed(clusters: Sequence[Sequence[float] | Floats]) -> tuple[Floats, Floats, bool]:
    """Return the sums and the sizes of all clusters with values, both [clusters], and whether all values are 0 or 1."""
    arrays = [np.asarray(cluster, np.float64) for cluster in clusters if len(cluster)]
    if not arrays:
        raise ValueError("expected at least one value")
    share = all(bool(((values == 0) | (values == 1)).all()) for values in arrays)
    return (
        np.array([values.sum() for values in arrays]),
        np.array([len(values) for values in arrays], np.float64),
        share,
    )


def _estimate(mean: float, influences: Floats, num_rollouts: int, level: float, share: bool) -> Estimate:
    """Build the estimate from each cluster's weighted deviation from the mean, [clusters]; the deviations sum to 0."""
    count = len(influences)
    if count < 2:
        return Estimate(mean, None, None, count)
    variance = float((influences**2).sum()) / (count * (count - 1))
    if share:
        return Estimate(mean, *_wilson(mean, variance, count, num_rollouts, level), count)
    if variance <= (1e-12 * mean) ** 2:  # all clusters have the same mean, up to rounding errors
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
    return max(0.0, min(mean, middle - reach)), min(1.0, max(mean, middle + reach))  # rounding must not exclude m


@lru_cache(maxsize=1024)
def t_quantile(level: float, degrees: int) -> float:
    """Return t with P(-t < T < t) = `level`, where T has Student's distribution with `degrees` degrees of freedom."""
    from scipy.special import stdtrit  # takes 0.2 s to import

    return float(stdtrit(degrees, (1 + level) / 2))


def sign_test(wins: int, losses: int) -> float:
    """Two-sided p-value of `wins` versus `losses`; ties are not counted. The p-value is 1 if both numbers are 0.

    Exact test: twice the smaller tail probability of the binomial distribution with probability 0.5, at most 1.
    With 8 wins and 2 losses: 2 (1 + 10 + 45) / 1024 = 0.109.
    """
    from scipy.special import bdtr  # binomtest of scipy.stats has the same result and takes 1 s to import

    return min(1.0, 2 * float(bdtr(min(wins, losses), wins + losses, 0.5)))
