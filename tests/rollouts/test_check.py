"""A loop's return value is checked; here the addresses of its turn rewards."""

from __future__ import annotations

import math

import pytest
from loop_builders import ListEngine, config, roll

from agentrl.agent_loops import AgentLoop, agent_loops
from agentrl.types.rollout import Stop, TurnReward


def rolled(monkeypatch, *rewards: TurnReward):
    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        await chat.model_turn()
        rollout = chat.rollout()
        rollout.turn_rewards = list(rewards)
        return rollout

    monkeypatch.setitem(agent_loops._objects, "own", type("Own", (AgentLoop,), {"run": run}))
    return roll(ListEngine("5"), config("own"))


def test_a_turn_reward_of_a_segment_that_is_there_is_kept(monkeypatch):
    reward = TurnReward(0, 1, "form", 0.5)
    assert rolled(monkeypatch, reward).turn_rewards == [reward]


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        (TurnReward(1, 0, "form", 0.5), "turn reward 'form': there is no trajectory 1"),
        (TurnReward(0, 2, "form", 0.5), "turn reward 'form': trajectory 0 has no segment 2"),
        (TurnReward(0, -1, "form", 0.5), "turn reward 'form': trajectory 0 has no segment -1"),
        (TurnReward(0, 1, "form", math.nan), "turn reward 'form' is nan, not a finite number"),
    ],
)
def test_invalid_turn_reward_fails_the_rollout(monkeypatch, reward, told):
    rollout = rolled(monkeypatch, reward)
    assert rollout.stop is Stop.ERROR
    assert rollout.error.endswith(told)
