"""A batch reward: one call scores several waiting rollouts. Use this if a model or a service computes scores.

    agentrl train +experiment=calculator reward.reward_manager.name=batch \
        reward.custom_reward_function.path=examples/custom_reward/batch_reward.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


def compute_score(
    solution_strs: Sequence[str], ground_truths: Sequence[str], extra_infos: Sequence[Mapping[str, object]]
) -> list[float]:
    """Return one score per rollout, in order: 1 if the last number in the last turn is right, else 0."""
    last_turns = [str(info["last_turn"]) for info in extra_infos]
    found = [re.findall(r"-?\d+", turn) for turn in last_turns]
    return [float(numbers[-1:] == [str(truth)]) for numbers, truth in zip(found, ground_truths, strict=True)]
