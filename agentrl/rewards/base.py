"""The reward: what a rollout was worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pydantic import JsonValue


class Reward(Protocol):
    """Scores one answer. It may have a `close()`, for `close_reward` to call when a run is over."""

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """Rewards by name; `score` is the one trained on.

        Raises:
            RewardError: the user's function failed or gave no finite number; names function, source and row.
        """
        ...


def close_reward(reward: Reward) -> None:
    """End what a reward runs on, where there is something to end."""
    if callable(close := getattr(reward, "close", None)):
        close()
