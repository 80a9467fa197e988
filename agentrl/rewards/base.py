"""The reward: what a rollout was worth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from pydantic import JsonValue

from agentrl.errors import RewardError


class NoVerdictError(RewardError):
    """A reward that has nothing to say of this row: in a mixture another may, alone it is an error."""


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


def probability(logit: float) -> float:
    """1 / (1 + e^-logit), without overflow."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
