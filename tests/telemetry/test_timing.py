"""Timers by name, and percentiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.telemetry.timing import Timer, percentile


def test_seconds_add_up_by_name_until_taken():
    now_s = iter([0.0, 1.5, 10.0, 12.0, 20.0, 20.5])
    timer = Timer(clock=lambda: next(now_s))
    for name in ("collect", "collect", "learn"):
        with timer.timed(name):
            pass
    assert timer.take() == {"timing_s/collect": 3.5, "timing_s/learn": 0.5}
    assert timer.take() == {}


def test_failures_are_timed():
    now_s = iter([0.0, 2.0])
    timer = Timer(clock=lambda: next(now_s))
    with pytest.raises(KeyError), timer.timed("learn"):
        raise KeyError
    assert timer.take() == {"timing_s/learn": 2.0}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 100))
def test_percentile_is_numpys(values, percent):
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), abs=1e-6)


def test_percentile_of_nothing():
    assert math.isnan(percentile([], 50))
