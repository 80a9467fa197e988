"""The reward interface, and checks of its scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

from pydantic import JsonValue

from agentrl.config.reward import RewardConfig
from agentrl.errors import RewardError
from agentrl.registry import Registry


class NoVerdictError(RewardError):
    """The reward cannot score this row. This is an error, unless another reward of a mixture scores the row."""


class Reward(Protocol):
    """Scores one answer. An optional `close()` is called by `close_reward` at the end of a run."""

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """Return the rewards by name; training uses `score`.

        Raises:
            RewardError: the user's function failed or returned no finite number. The message names the
                function, the data source and the row.
        """
        ...


def close_reward(reward: Reward) -> None:
    """Close the reward if it has a `close()`."""
    if callable(close := getattr(reward, "close", None)):
        close()


def probability(logit: float) -> float:
    """Return 1 / (1 + e^-logit), computed without overflow."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))


def check_bounds(score: float, bounds: tuple[float, float] | None, where: str) -> None:
    """Check that a score is finite and within `bounds` (inclusive). If `bounds` is None, any finite score is valid.

    Raises:
        RewardError: the score is not valid; the message begins with `where`.
    """
    if not math.isfinite(score):
        raise RewardError(f"{where}: the score is {score}, not a finite number")
    if bounds is not None and not bounds[0] <= score <= bounds[1]:
        raise RewardError(f"{where}: the score {score:g} lies outside reward.range, {bounds[0]:g} to {bounds[1]:g}")


class BoundedReward:
    """A reward whose score must lie within `bounds` (inclusive)."""

    def __init__(self, reward: Reward, bounds: tuple[float, float]) -> None:
        self._reward, self._bounds = reward, bounds

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`.

        Raises:
            RewardError: the score lies outside the bounds; the message names the row.
        """
        rewards = await self._reward(data_source, solution_str, ground_truth, extra_info)
        check_bounds(rewards["score"], self._bounds, f"row {extra_info.get('index', 'unknown')} of '{data_source}'")
        return rewards

    def close(self) -> None:
        """Close the reward."""
        close_reward(self._reward)


reward_models: Registry[Callable[[RewardConfig], Reward]] = Registry(
    "reward model",
    {
        "judge": "agentrl.rewards.judge.reward:load_judge",
        "reward_model": "agentrl.rewards.models.reward:load_model_reward",
    },
)
"""Name in `reward.name` or in a component's `reward` -> factory that builds the reward from `reward.*`."""
