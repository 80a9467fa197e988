"""Student's t against published tables."""

from __future__ import annotations

from statistics import NormalDist

import pytest

from agentrl.stats.intervals import t_quantile


@pytest.mark.parametrize(
    ("level", "degrees", "table"),
    [
        (0.95, 1, 12.7062047362),
        (0.95, 2, 4.3026527297),
        (0.95, 3, 3.1824463053),
        (0.95, 10, 2.2281388520),
        (0.95, 255, 1.9693105699),
        (0.99, 1, 63.6567411629),
        (0.99, 5, 4.0321429836),
        (0.99, 30, 2.7499956536),
        (0.8, 4, 1.5332062740),
    ],
)
def test_quantiles_equal_published_tables(level, degrees, table):
    assert t_quantile(level, degrees) == pytest.approx(table, rel=1e-9)


def test_many_degrees_of_freedom_are_the_normal_distribution():
    assert t_quantile(0.95, 10**5 + 1) == pytest.approx(NormalDist().inv_cdf(0.975), abs=3e-5)
