"""Calibration: predicted probabilities against observed frequencies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.stats.calibration import brier_score, expected_calibration_error


def test_calibration_error_equals_the_worked_example():
    assert expected_calibration_error([0.1, 0.3, 0.9], [0, 1, 1], num_bins=2) == pytest.approx(0.7 / 3)


def test_correct_predictions_have_no_error():
    assert expected_calibration_error([0.75] * 4, [1, 1, 1, 0]) == pytest.approx(0)
    assert expected_calibration_error([0.0, 1.0], [0, 1]) == brier_score([0.0, 1.0], [0, 1]) == 0


def test_confident_wrong_predictions_have_error_1():
    assert expected_calibration_error([1.0, 0.0], [0, 1]) == brier_score([1.0, 0.0], [0, 1]) == 1


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=20))
def test_calibration_error_and_brier_score_are_between_0_and_1(rows):
    said, came = [row[0] for row in rows], [float(row[1]) for row in rows]
    assert 0 <= expected_calibration_error(said, came) <= 1
    assert 0 <= brier_score(said, came) <= 1


@pytest.mark.parametrize("measure", [expected_calibration_error, brier_score])
def test_empty_input_returns_none(measure):
    with pytest.raises(ValueError, match="at least one probability"):
        measure([], [])
