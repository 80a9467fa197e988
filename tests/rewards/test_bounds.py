from __future__ import annotations

import math

import pytest

from agentrl.errors import RewardError
from agentrl.rewards.base import check_bounds


@pytest.mark.parametrize("score", [-1.0, 0.0, 1.0])
def test_score_bounds_are_inclusive(score):
    check_bounds(score, (-1.0, 1.0), "row 3")
    check_bounds(score * 1e9, None, "row 3")


@pytest.mark.parametrize("score", [1.5, -1.5, math.inf, -math.inf, math.nan])
def test_a_score_outside_the_bounds_names_the_row(score):
    with pytest.raises(RewardError, match=r"row 3: the score"):
        check_bounds(score, (-1.0, 1.0), "row 3")


@pytest.mark.parametrize("score", [math.inf, math.nan])
def test_non_finite_scores_never_pass(score):
    with pytest.raises(RewardError, match="not a finite number"):
        check_bounds(score, None, "row 3")
