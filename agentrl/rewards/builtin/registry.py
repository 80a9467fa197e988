"""Registry of the built-in rewards by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

from pydantic import JsonValue

from agentrl.errors import ConfigError, RewardError
from agentrl.registry import Registry
from agentrl.tools.base import InfraError
from agentrl.types.rollout import INTERACTION, VERIFIER
from agentrl.utils.answers import NumberMethod, as_number, final_number, normalised
from agentrl.utils.verl_classes import REWARDS

_QA = "agentrl.rewards.builtin.question_answering"
_MATH = "agentrl.rewards.builtin.mathematics"

rewards: Registry[Callable[..., object]] = Registry(
    "reward",
    {
        "exact_match": f"{__name__}:exact_match",
        "gsm8k": f"{__name__}:gsm8k",
        "math": f"{_MATH}:MathReward",
        "math_dapo": f"{_MATH}:DapoMathReward",
        "geo3k": f"{_MATH}:GeometryReward",
        "search_qa": f"{_QA}:search_qa",
        "qa": f"{_QA}:qa",
        "classification": f"{_QA}:classification",
        "code": "agentrl.rewards.builtin.code:CodeReward",
        "tool_rewards": f"{__name__}:tool_rewards",
        "verifier": f"{__name__}:verifier",
    },
    aliases={"math_reasoning": "math", "trivia": "qa", "code_generation": "code", "geometry": "geo3k", **REWARDS},
)
"""Reward functions by name, and classes that `reward.*` configures; add your own with `@rewards.register("name")`."""

NEEDS_SANDBOX = "code"
NO_SANDBOX = "set reward.sandbox=local or another sandbox (docs/rewards.md), or reward.sandbox_fusion.url"

_NO_TRUTH = "the row has no ground truth (column 'ground_truth', 'answer' or 'reward_model.ground_truth')"


def exact_match(solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]) -> float:
    """1 if the last turn equals one of the ground truths; case, blanks and a final full stop are ignored."""
    if ground_truth is None:  # else every answer would count as wrong
        raise RewardError(_NO_TRUTH)
    answer = normalised(extra_info.get("last_turn", solution_str))
    valid = ground_truth if isinstance(ground_truth, list) else [ground_truth]
    return float(answer in map(normalised, valid))


def tool_rewards(extra_info: Mapping[str, object]) -> float:
    """Sum of the rewards that the environment's `reward` and the tools' `calc_reward` returned for the rollout."""
    found = extra_info.get("rollout_reward_scores")
    by_name = found if isinstance(found, Mapping) else {}
    return float(sum(value for name, value in by_name.items() if name != INTERACTION))


def verifier(extra_info: Mapping[str, object]) -> float:
    """The reward that the tests of the row's task folder returned."""
    found = extra_info.get("rollout_reward_scores")
    if not isinstance(found, Mapping) or VERIFIER not in found:
        raise InfraError("no tests of a task folder have run for this rollout (docs/task_folders.md)")
    return float(found[VERIFIER])


def gsm8k(
    solution_str: str,
    ground_truth: JsonValue,
    method: NumberMethod = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """`score` if the final number equals a ground truth, `format_score` for any other number, 0 without a number.

    `method` is `strict` (`#### N` is required) or `flexible` (the last number counts).
    """
    if method not in get_args(NumberMethod):
        raise ConfigError.keyless(f"reward 'gsm8k': method must be strict or flexible, not '{method}'")
    truths = ground_truth if isinstance(ground_truth, list) else [ground_truth]
    expected = list(map(as_number, truths))
    if None in expected or not expected:
        raise RewardError(
            _NO_TRUTH if ground_truth is None else f"the ground truth {ground_truth!r:.100} is not a number"
        )
    answer = final_number(solution_str, method)
    if answer is None:
        return 0.0
    return score if answer in expected else format_score
