"""A custom reward: a right answer scores 1, minus a small cost for each turn after the first; a wrong answer 0.

    agentrl train +experiment=calculator reward.custom_reward_function.path=examples/custom_reward/reward.py \
        reward.custom_reward_function.reward_kwargs='{price_of_a_turn: 0.1}' reward.success_threshold=0.5
"""

from __future__ import annotations

import re
from collections.abc import Mapping


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, object],
    price_of_a_turn: float = 0.05,
) -> dict[str, float]:
    """Return the `score` and numbers to log. The function may also return only a `float`, and be a plain `def`."""
    numbers = re.findall(r"-?\d+", str(extra_info["last_turn"]))
    right = float(numbers[-1:] == [str(ground_truth)])
    num_turns = int(str(extra_info["num_turns"]))
    return {"score": right * (1 - price_of_a_turn * (num_turns - 1)), "right": right, "num_turns": float(num_turns)}
