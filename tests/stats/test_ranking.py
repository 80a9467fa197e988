"""Rankings: the area under the curve, and Spearman's correlation."""

from __future__ import annotations

from itertools import product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.stats.ranking import area_under_curve, mean_ranks, rank_correlation

SCORES = st.lists(st.integers(-3, 3).map(float), min_size=2, max_size=12)


def test_area_under_curve_equals_the_worked_example():
    assert area_under_curve([1, 2, 2, 3], [False, False, True, True]) == 0.875


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=20))
def test_the_area_is_the_share_of_pairs_in_order(rows):
    good, bad = ([score for score, came in rows if came is side] for side in (True, False))
    wins = [1.0 if one > other else 0.5 if one == other else 0.0 for one, other in product(good, bad)]
    found = area_under_curve([score for score, _ in rows], [came for _, came in rows])
    assert found == (pytest.approx(fmean(wins)) if wins else None)


def test_equal_values_share_their_rank():
    assert mean_ranks([5, 1, 5, 9]).tolist() == [2.5, 1.0, 2.5, 4.0]


def test_rank_correlation_equals_known_values():
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 1000]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(1 - 6 * 4 / (5 * 24))


def test_constant_values_have_no_rank_correlation():
    assert rank_correlation([1, 1], [1, 2]) is None
    assert rank_correlation([], []) is None


@given(SCORES)
def test_rank_correlation_ignores_scale(scores):
    found = rank_correlation(scores, [3 * score + 1 for score in scores])
    assert found is None if len(set(scores)) == 1 else found == pytest.approx(1)
