"""A custom reward manager: it receives the configured reward, and training uses the manager's scores.

    agentrl train +experiment=calculator reward.custom_reward_function.path=examples/custom_reward/reward.py \
        reward.reward_manager.source=importlib reward.reward_manager.name=Patient \
        reward.reward_manager.module.path=examples/custom_reward/manager.py
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from agentrl.config.reward import RewardConfig
from agentrl.rewards.base import Reward
from agentrl.tools.base import InfraError


class Patient:
    """Calls the reward once more after an infrastructure failure."""

    def __init__(self, reward: Reward, config: RewardConfig) -> None:
        self.reward = reward

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        try:
            return await self.reward(data_source, solution_str, ground_truth, extra_info)
        except InfraError:
            return await self.reward(data_source, solution_str, ground_truth, extra_info)
