"""Confidence intervals against formulas written by hand, and against simulations with known true values."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import numpy as np
import pytest

from agentrl.stats.base import Estimate
from agentrl.stats.intervals import bootstrap, mean_estimate, paired_difference, t_quantile, task_mean_estimate

T_95_2 = 4.302652729749464  # Student's t, two degrees of freedom


def ends(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def test_one_value_per_task_gives_students_interval():
    values = [1.5, 2.0, 4.0]
    reach = T_95_2 * stdev(values) / math.sqrt(3)
    estimate = mean_estimate([[value] for value in values])
    assert (estimate.value, estimate.num) == (2.5, 3)
    assert ends(estimate) == pytest.approx((2.5 - reach, 2.5 + reach))


def test_interval_of_clustered_rollouts_equals_millers_formula():
    """SE^2 = sum over pairs of one task of (x - m)(y - m) / N^2, with G / (G - 1) for few tasks."""
    clusters = [[1.0, 3.0, 2.0], [5.0], [0.0, 0.5]]
    values = [value for cluster in clusters for value in cluster]
    mean = fmean(values)
    pairs = sum((x - mean) * (y - mean) for cluster in clusters for x in cluster for y in cluster)
    reach = T_95_2 * math.sqrt(3 / 2 * pairs) / len(values)
    assert ends(mean_estimate(clusters)) == pytest.approx((mean - reach, mean + reach))


def test_duplicate_rollouts_do_not_change_the_estimate():
    once, eight_times = ([[value] * count for value in (0.2, 1.7, 3.0, 0.4)] for count in (1, 8))
    assert ends(mean_estimate(once)) == pytest.approx(ends(mean_estimate(eight_times)))


def test_a_task_counts_once_or_by_its_rollouts():
    clusters = [[0.0, 0.0, 0.0], [1.5]]
    assert mean_estimate(clusters).value == pytest.approx(1.5 / 4)
    assert task_mean_estimate(clusters).value == pytest.approx(1.5 / 2)


@pytest.mark.parametrize(("passed", "num"), [(0, 10), (3, 10), (10, 10), (97, 100)])
def test_a_share_of_single_rollouts_is_wilsons_interval(passed, num):
    """The two p with |passed / num - p| = z sqrt(p (1 - p) / num)."""
    estimate = mean_estimate([[float(index < passed)] for index in range(num)])
    for end in ends(estimate):
        assert (passed / num - end) ** 2 == pytest.approx(1.959963984540054**2 * end * (1 - end) / num, abs=1e-12)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1


def test_equal_scores_of_a_group_count_as_one_rollout_at_the_bounds():
    assert ends(mean_estimate([[1, 1, 1]] * 10)) == ends(mean_estimate([[1]] * 10))


def test_undetermined_cases_have_no_interval():
    assert mean_estimate([[0.5, 0.7]]) == Estimate(pytest.approx(0.6), None, None, 1)
    assert mean_estimate([[0.1], [0.1], [0.1]]).low is None
    assert paired_difference([([1], [1]), ([0, 1], [1, 0])]) == Estimate(0.0, None, None, 2)
    assert paired_difference([([0], [1]), ([0], [1])]) == Estimate(1.0, None, None, 2)  # the differences are not shares


def test_empty_input_is_refused_and_empty_tasks_are_skipped():
    for estimate in (mean_estimate, task_mean_estimate, paired_difference):
        with pytest.raises(ValueError, match="at least one value"):
            estimate([])
    assert mean_estimate([[], [1.0], [2.5]]).num == 2


def test_a_paired_difference_is_students_interval_of_the_differences():
    pairs = [([0.0, 1.0], [1.0]), ([1.0], [0.5, 0.75]), ([0.25], [0.5]), ([], [1.0])]
    differences = [0.5, -0.375, 0.25]
    reach = T_95_2 * stdev(differences) / math.sqrt(3)
    estimate = paired_difference(pairs)
    assert estimate.num == 3
    assert ends(estimate) == pytest.approx((0.125 - reach, 0.125 + reach))


def covered(draw, truth: float, num: int) -> float:
    intervals = [ends(mean_estimate(draw())) for _ in range(num)]
    return fmean(low <= truth <= high for low, high in intervals)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("num_tasks", [5, 30])
@pytest.mark.parametrize("num_rollouts", [1, 8])
@pytest.mark.parametrize("skill", [(2, 2), (0.3, 0.3), (8, 0.4)])
def test_intervals_of_success_hold_the_truth(num_tasks, num_rollouts, skill):
    """Tasks of different difficulty; with 5 tasks the interval may be too wide, but never much too narrow."""
    random = np.random.default_rng(0)

    def draw() -> list[list[float]]:
        chances = random.beta(*skill, num_tasks)
        return random.binomial(1, chances[:, None], (num_tasks, num_rollouts)).astype(float).tolist()

    assert 0.91 <= covered(draw, skill[0] / sum(skill), 400) <= (1.0 if num_tasks < 30 else 0.99)


@pytest.mark.parametrize("num_tasks", [3, 10, 50])
def test_intervals_of_means_hold_the_truth(num_tasks):
    random = np.random.default_rng(1)

    def draw() -> list[list[float]]:
        return (random.normal(2, 1, (num_tasks, 1)) + random.normal(0, 1, (num_tasks, 4))).tolist()

    assert covered(draw, 2.0, 600) == pytest.approx(0.95, abs=0.025)


def test_the_bootstrap_of_a_mean_is_near_students_interval():
    values = np.random.default_rng(2).normal(3, 2, 200)
    estimate = bootstrap(values, lambda rows: float(rows.mean()), seed=1)
    reach = t_quantile(0.95, 199) * values.std(ddof=1) / math.sqrt(200)
    assert estimate.value == values.mean()
    assert ends(estimate) == pytest.approx((values.mean() - reach, values.mean() + reach), abs=0.1 * reach)


@pytest.mark.slow
def test_bootstrap_equals_scipy_on_a_skewed_ratio():
    """scipy 1.17.1: bootstrap((a, b), sum(a) / sum(b), paired=True, n_resamples=100_000, method="BCa")."""
    values = np.random.default_rng(3).exponential(1, (25, 2))
    estimate = bootstrap(values, lambda rows: float(rows[:, 0].sum() / rows[:, 1].sum()), seed=0, num=20_000)
    assert ends(estimate) == pytest.approx((0.4751, 1.4796), abs=0.02)


def test_the_bootstrap_is_reproducible_and_reports_undetermined_cases():
    values = np.arange(10.0)
    first, again = (bootstrap(values, lambda rows: float(rows.mean()), seed=5) for _ in range(2))
    assert first == again
    assert bootstrap(np.ones(10), lambda rows: float(rows.mean())) == Estimate(1.0, None, None, 10)
    assert bootstrap(values[:1], lambda rows: float(rows.mean())) == Estimate(0.0, None, None, 1)


def test_extreme_skewness_has_no_bootstrap_interval():
    """One of 80 values carries nearly everything, so a = 1/6 at most, and 1 - a (z0 + z) < 0 with z = 7."""
    values = np.array([[1e6], *[[0.001 * i] for i in range(79)]])
    found = bootstrap(values, lambda rows: float(rows.mean()), level=1 - 1e-12)
    assert (found.low, found.high) == (None, None)
    assert bootstrap(values, lambda rows: float(rows.mean())).high is not None
