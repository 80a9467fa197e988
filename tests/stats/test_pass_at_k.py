"""pass@k and pass^k against counting every choice of k attempts, and against the usual product formula."""

from __future__ import annotations

from dataclasses import astuple
from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest

from agentrl.stats.intervals import mean_estimate
from agentrl.stats.pass_at_k import pass_at_k, pass_at_k_estimate, pass_hat_k, pass_hat_k_estimate

SMALL = [(n, c, k) for n in range(1, 8) for c in range(n + 1) for k in range(1, n + 1)]


@pytest.mark.parametrize(("n", "c", "k"), SMALL)
def test_pass_at_k_and_pass_hat_k_equal_enumeration(n, c, k):
    choices = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == float(Fraction(sum(map(any, choices)), len(choices)))
    assert pass_hat_k(n, c, k) == float(Fraction(sum(map(all, choices)), len(choices)))


@pytest.mark.parametrize(("n", "c", "k"), [(200, 3, 100), (10_000, 1, 10), (1_000, 999, 2), (100_000, 40, 5_000)])
def test_many_attempts_agree_with_the_product_of_chen_and_others(n, c, k):
    expected = 1.0 if n - c < k else 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1))
    assert pass_at_k(n, c, k) == pytest.approx(expected, rel=1e-9)


def test_a_small_chance_keeps_its_digits():
    assert pass_at_k(10**7, 1, 1) == 1e-7
    assert pass_hat_k(10**7, 2, 2) == 2 / (10**7 * (10**7 - 1))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_impossible_counts_are_refused(n, c, k):
    for passing in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match="expected 1 <= k <= n"):
            passing(n, c, k)


def test_pass_at_k_and_pass_hat_k_are_unbiased():
    """The mean over all outcomes of n attempts, weighted by probability, equals the probability for k new attempts."""
    n, k, p = 6, 3, 0.3
    outcomes = [(c, comb(n, c) * p**c * (1 - p) ** (n - c)) for c in range(n + 1)]
    assert sum(chance * pass_at_k(n, c, k) for c, chance in outcomes) == pytest.approx(1 - (1 - p) ** k)
    assert sum(chance * pass_hat_k(n, c, k) for c, chance in outcomes) == pytest.approx(p**k)


def test_estimate_uses_only_tasks_with_k_attempts():
    tasks = [(4, 1), (4, 4), (2, 2), (0, 0)]
    estimate = pass_at_k_estimate(tasks, 4)
    assert estimate is not None
    assert (estimate.value, estimate.num) == (1.0, 2)
    assert pass_hat_k_estimate(tasks, 2).value == pytest.approx((0 + 1 + 1) / 3)
    assert pass_at_k_estimate(tasks, 5) is None


def test_pass_at_1_is_the_mean_with_its_interval():
    counts = [(8, c) for c in (0, 1, 8, 3, 5, 8, 7)]
    estimate, mean = pass_at_k_estimate(counts, 1), mean_estimate([[1] * c + [0] * (n - c) for n, c in counts])
    assert astuple(estimate) == pytest.approx(astuple(mean))
