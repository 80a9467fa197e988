"""Reward of the demo: 1 if the last turn contains the right number, else 0."""

from __future__ import annotations

import re
from collections.abc import Mapping

ANSWER = re.compile(r"The answer is (-?\d+)")


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, object]) -> float:
    """Return 1 if the last turn contains exactly one answer, and the answer is right; else 0."""
    return float(ANSWER.findall(str(extra_info["last_turn"])) == [ground_truth])
