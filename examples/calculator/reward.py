"""The demo's reward: 1 when the last turn states the right number, else 0."""

from __future__ import annotations

import re
from collections.abc import Mapping

ANSWER = re.compile(r"The answer is (-?\d+)")


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, object]) -> float:
    """One answer, and the right one: a turn that states several gets nothing."""
    return float(ANSWER.findall(str(extra_info["last_turn"])) == [ground_truth])
