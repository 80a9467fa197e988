"""The sign test: how often the better of two sides would win so unevenly if neither were better."""

from __future__ import annotations

import math


def sign_test(wins: int, losses: int) -> float:
    """Two-sided p-value of `wins` against `losses`; ties say nothing and are left out. 1 where there are neither.

    Exact: twice the smaller tail of a fair coin, at most 1. With 8 wins and 2 losses 2 (1 + 10 + 45) / 1024 = 0.109.
    """
    tosses = wins + losses
    terms = [_log_probability(tosses, count) for count in range(min(wins, losses) + 1)]
    return min(1.0, 2 * math.fsum(map(math.exp, terms)))


def _log_probability(tosses: int, heads: int) -> float:
    ways = math.lgamma(tosses + 1) - math.lgamma(heads + 1) - math.lgamma(tosses - heads + 1)
    return ways - tosses * math.log(2)
