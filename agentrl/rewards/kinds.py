"""Rewards that are no function but a part of their own, built from the configuration: models that score."""

from __future__ import annotations

from collections.abc import Callable

from agentrl.config.reward import RewardConfig
from agentrl.registry import Registry
from agentrl.rewards.base import Reward

reward_models: Registry[Callable[[RewardConfig], Reward]] = Registry(
    "reward model",
    {"judge": "agentrl.rewards.judge:load_judge", "reward_model": "agentrl.rewards.models.reward:load_model_reward"},
)
"""What `reward.name`, or a component's `reward`, says -> what makes it of `reward.*`."""
