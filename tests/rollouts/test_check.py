"""A loop's return value is checked; here the addresses of its turn rewards."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from loop_builders import ListEngine, config, roll

from agentrl.agent_loops import AgentLoop, agent_loops
from agentrl.types.rollout import Stop, TurnReward


def rolled(monkeypatch, *rewards: TurnReward, facts=None):
    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        await chat.model_turn()
        rollout = chat.rollout()
        rollout.turn_rewards = list(rewards)
        rollout.facts = {} if facts is None else facts
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


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"n": np.int64(3)}, r"facts\['n'\].* int64"),
        ({"a": [{"n": {1}}]}, r"facts\['a'\].* set"),
        ({3: 4}, "names of rollout.facts"),
        ([], "must be a dict"),
    ],
)
def test_facts_that_cannot_be_saved_fail_the_rollout_alone(monkeypatch, facts, told):
    rollout = rolled(monkeypatch, facts=facts)
    assert rollout.stop is Stop.ERROR
    assert "agent loop Own" in rollout.error
    assert re.search(told, rollout.error)
    assert rolled(monkeypatch, facts={"n": 3, "a": [None, {"b": math.inf}]}).stop is not Stop.ERROR
