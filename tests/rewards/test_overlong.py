from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.reward import OverlongBufferConfig, RewardConfig
from agentrl.errors import ConfigError
from agentrl.rewards.functions.overlong import OverlongReward, overlong_penalty
from agentrl.rewards.loading import load_reward


def test_overlong_penalty_equals_the_example_of_the_paper():
    """DAPO's run: 16384 expected tokens, then a buffer of 4096; 20480 at most."""
    at = {length: overlong_penalty(length, 20480, 4096, 1.0) for length in (0, 16384, 18432, 20480)}
    assert at == {0: 0.0, 16384: 0.0, 18432: -0.5, 20480: -1.0}


@given(st.integers(1, 100), st.integers(0, 100), st.floats(0, 3), st.integers(0, 200))
def test_overlong_penalty_is_linear_up_to_the_factor(buffer, before, factor, length):
    limit = before + buffer
    penalty = overlong_penalty(length, limit, buffer, factor)
    assert penalty <= 0
    if length <= before:
        assert penalty == 0
    elif length <= limit:
        assert penalty == pytest.approx(-factor * (length - before) / buffer)


async def right(data_source, solution_str, ground_truth, extra_info):
    return {"score": 1.0, "acc": 1.0}


def score(config, **extra):
    return asyncio.run(OverlongReward(right, OverlongBufferConfig(**config), 100)("math", "", None, extra))


def test_longest_trajectory_is_measured():
    config = {"enable": True, "len": 20, "penalty_factor": 0.5}
    assert score(config, response_lengths=[90, 30]) == {"score": 0.75, "acc": 1.0}
    assert score({**config, "log": True}, response_lengths=[10]) == {
        "score": 1.0,
        "acc": 1.0,
        "overlong_reward": 0.0,
        "overlong": 0.0,
    }


def test_unsupported_length_penalties_are_refused():
    with pytest.raises(ConfigError, match="needs responses as tokens"):
        score({"enable": True, "len": 20})
    with pytest.raises(ConfigError, match=r"len=101 must be at most data\.max_response_length=100"):
        OverlongReward(right, OverlongBufferConfig(len=101), 100)
    with pytest.raises(ConfigError, match="which only a run has"):
        load_reward(RewardConfig(overlong_buffer={"enable": True}))
