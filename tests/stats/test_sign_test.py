"""The sign test against counting every sequence of coin tosses."""

from __future__ import annotations

from itertools import product

import pytest

from agentrl.stats.intervals import sign_test


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (8, 2), (2, 8), (5, 5), (12, 0), (7, 4)])
def test_sign_test_equals_enumeration_of_coin_tosses(wins, losses):
    tosses = [sum(toss) for toss in product((0, 1), repeat=wins + losses)]
    uneven = abs(2 * wins - (wins + losses))
    as_uneven = sum(abs(2 * heads - (wins + losses)) >= uneven for heads in tosses)
    assert sign_test(wins, losses) == pytest.approx(as_uneven / len(tosses), rel=1e-12)


def test_many_tosses_do_not_overflow():
    assert sign_test(100_000, 99_000) == pytest.approx(0.0251, abs=0.001)  # two-sided normal tail of 2.24
    assert sign_test(5000, 0) == 0.0
