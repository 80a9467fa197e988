"""Quantiles of Student's t, for intervals from few observations."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np


@lru_cache(maxsize=1024)
def t_quantile(level: float, degrees: int) -> float:
    """t with P(-t < T < t) = `level`, for T of Student's distribution with `degrees` of freedom.

    By bisection over the angle a = atan(t / sqrt(degrees)), for which the probability is a finite sum of powers of
    cos(a) (Abramowitz & Stegun 1964, 26.7.3 and 26.7.4).
    """
    low, high = 0.0, math.pi / 2
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if _central_probability(middle, degrees) < level else (low, middle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _central_probability(angle: float, degrees: int) -> float:
    """P(|T| < sqrt(degrees) tan(angle))."""
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees % 2 == 0:
        even = np.arange(2, degrees - 1, 2)
        return float(sine * (1 + np.cumprod((even - 1) / even * cosine**2).sum()))
    odd = np.arange(3, degrees - 1, 2)
    series = cosine * (1 + np.cumprod((odd - 1) / odd * cosine**2).sum()) if degrees > 1 else 0.0
    return float(2 / math.pi * (angle + sine * series))
