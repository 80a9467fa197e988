"""The example of a custom reward: right answers, and a price for every further turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentrl.registry import load_object

compute_score = load_object(f"{Path(__file__).parents[2] / 'examples/custom_reward/reward.py'}:compute_score")


def score(last_turn, num_turns, **kwargs):
    extra_info = {"last_turn": last_turn, "num_turns": num_turns}
    return asyncio.run(compute_score("calculator", "", "42", extra_info, **kwargs))


def test_every_further_turn_costs():
    assert score("The answer is 42", num_turns=1)["score"] == 1
    assert score("The answer is 42", num_turns=3) == pytest.approx({"score": 0.9, "right": 1, "num_turns": 3})
    assert score("The answer is 42", num_turns=3, price_of_a_turn=0.2)["score"] == pytest.approx(0.6)


def test_a_wrong_answer_earns_nothing_however_short():
    assert score("The answer is 41", num_turns=1) == {"score": 0, "right": 0, "num_turns": 1}
    assert score("I do not know", num_turns=1)["score"] == 0
