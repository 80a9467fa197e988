"""Estimates as JSON that any parser can read."""

from __future__ import annotations

import json
import math

import pytest

from agentrl.stats.base import Estimate, plain
from agentrl.types.rollout import Stop


def test_any_number_type_becomes_json():
    figures = {1: Estimate(0.5, None, math.inf, 3), "x": (1, True, None, math.nan, Stop.FINISHED, [{"y": 2.0}])}
    assert json.loads(json.dumps(plain(figures), allow_nan=False)) == {
        "1": {"value": 0.5, "low": None, "high": None, "num": 3},
        "x": [1, True, None, None, "finished", [{"y": 2.0}]],
    }


def test_values_without_json_form_are_refused():
    with pytest.raises(TypeError, match="cannot convert a set to JSON"):
        plain({"x": {1, 2}})
