"""Rewards of tools need tools; an environment chooses the agent loop."""

from __future__ import annotations

import pytest
from complaints import keys_and_kinds, problems_of

from agentrl.config.rollout import MultiTurnConfig, RolloutConfig
from agentrl.errors import Kind

WORLD = {"multi_turn": {"environment": "world.py:World"}}


@pytest.mark.parametrize(
    ("reward", "key"),
    [
        ({"name": "tool_rewards"}, "reward.name"),
        ({"components": {"world": {"reward": "tool_rewards"}, "other": {"reward": "judge"}}}, "reward.components"),
    ],
)
def test_rewards_of_tools_need_tools(reward, key):
    assert (key, Kind.MISSING) in keys_and_kinds(problems_of(reward=reward))
    assert problems_of(reward=reward, rollout={"n": 2, **WORLD}) == []
    assert problems_of(reward=reward, trainer={"python_objects": ["tool add"]}) == []


def test_an_environment_needs_a_loop_that_calls_tools():
    assert RolloutConfig(multi_turn=MultiTurnConfig(**WORLD["multi_turn"])).agent_loop == "tool_agent"
    assert RolloutConfig().agent_loop == "single_turn_agent"
