"""The example custom reward: correct answers, minus a price per additional turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentrl.config.reward import RewardConfig
from agentrl.registry import load_object
from agentrl.rewards.loading import load_reward
from agentrl.tools.base import InfraError

FOLDER = Path(__file__).parents[2] / "examples/custom_reward"
compute_score = load_object(f"{FOLDER / 'reward.py'}:compute_score")


def score(last_turn, num_turns, **kwargs):
    extra_info = {"last_turn": last_turn, "num_turns": num_turns}
    return asyncio.run(compute_score("calculator", "", "42", extra_info, **kwargs))


def test_every_further_turn_costs():
    assert score("The answer is 42", num_turns=1)["score"] == 1
    assert score("The answer is 42", num_turns=3) == pytest.approx({"score": 0.9, "right": 1, "num_turns": 3})
    assert score("The answer is 42", num_turns=3, price_of_a_turn=0.2)["score"] == pytest.approx(0.6)


def test_short_wrong_answer_gets_no_reward():
    assert score("The answer is 41", num_turns=1) == {"score": 0, "right": 0, "num_turns": 1}
    assert score("I do not know", num_turns=1)["score"] == 0


def test_all_waiting_rollouts_are_scored_in_one_batch():
    custom, manager = {"path": FOLDER / "batch_reward.py"}, {"name": "batch"}
    reward = load_reward(RewardConfig(custom_reward_function=custom, reward_manager=manager, batch_wait_s=0.01))

    async def main():
        turns = {"so 42": "42", "no 41": "42", "none": "42"}
        return await asyncio.gather(*(reward("s", "", truth, {"last_turn": turn}) for turn, truth in turns.items()))

    assert asyncio.run(main()) == [{"score": 1.0}, {"score": 0.0}, {"score": 0.0}]


def test_reward_manager_with_retries():
    tries = []

    async def failing(*asked):
        tries.append(asked)
        raise InfraError("down")

    patient = load_object(f"{FOLDER / 'manager.py'}:Patient")(failing, RewardConfig())
    with pytest.raises(InfraError, match="down"):
        asyncio.run(patient("s", "", "42", {}))
    assert len(tries) == 2
