"""`reward.*`: what a rollout is worth."""

from __future__ import annotations

from pathlib import Path

from pydantic import JsonValue, PositiveFloat

from agentrl.config.base import Section

NO_REWARD = "none"
"""What `reward.name` says where rollouts are generated without a score."""


class CustomRewardConfig(Section):
    """A reward function from the user's file."""

    path: Path | None = None
    """Python file that defines it."""
    name: str = "compute_score"
    """Its name in that file; async or not."""
    reward_kwargs: dict[str, JsonValue] = {}
    """Further keyword arguments for every call."""


class RewardConfig(Section):
    """What a rollout is worth."""

    name: str = "auto"
    """A built-in reward (exact_match, gsm8k), auto to choose by the row's data_source, or none to generate unscored."""
    custom_reward_function: CustomRewardConfig = CustomRewardConfig()
    """The user's own function; takes the place of `name`."""
    include_tool_text: bool = False
    """Let the reward's solution_str hold tool and user text too, not only what the model wrote."""
    success_threshold: float = 1.0
    """Scores from here on count as a success in metrics."""
    timeout_s: PositiveFloat = 60.0
    """Seconds one call may take."""
