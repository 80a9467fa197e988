"""Scores outside the range that was said to be possible: an error, not a surprise in the advantages."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import JsonValue

from agentrl.errors import RewardError
from agentrl.rewards.base import Reward, close_reward


def check_bounds(score: float, bounds: tuple[float, float] | None, where: str) -> None:
    """Refuse a score that is no number or lies outside `bounds`, ends included; None: any finite one will do.

    Raises:
        RewardError: begins with `where`.
    """
    if not math.isfinite(score):
        raise RewardError(f"{where}: the score is {score}, no finite number")
    if bounds is not None and not bounds[0] <= score <= bounds[1]:
        raise RewardError(f"{where}: the score {score:g} lies outside reward.range, {bounds[0]:g} to {bounds[1]:g}")


class BoundedReward:
    """A reward whose score must lie in `bounds`, ends included."""

    def __init__(self, reward: Reward, bounds: tuple[float, float]) -> None:
        self._reward, self._bounds = reward, bounds

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`.

        Raises:
            RewardError: the score lies outside; names the row.
        """
        rewards = await self._reward(data_source, solution_str, ground_truth, extra_info)
        check_bounds(rewards["score"], self._bounds, f"row {extra_info.get('index', 'unknown')} of '{data_source}'")
        return rewards

    def close(self) -> None:
        """Close the reward."""
        close_reward(self._reward)
