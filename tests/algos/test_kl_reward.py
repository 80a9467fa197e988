from __future__ import annotations

from dataclasses import replace

import pytest

from agentrl.algos.kl_reward import KLReward, kl_reward
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.errors import ConfigError
from agentrl.types.sample import Sample

SAMPLE = Sample(
    [1, 2, 3],
    [0, 1, 1],
    [1, 1, 1],
    [0, 0, 0],
    behaviour_logprobs=[0, -1.0, -2.0],
    ref_logprobs=[0, -1.5, -1.0],
)


def reward(**settings: object) -> KLReward:
    made = kl_reward(AlgorithmConfig(use_kl_in_reward=True, kl_ctrl={"kl_coef": 0.1}, **settings))
    assert made is not None
    return made


def test_each_token_pays_for_its_divergence() -> None:
    assert reward()(SAMPLE) == pytest.approx([0, 0.05, -0.1])
    assert reward(kl_penalty="abs")(SAMPLE) == pytest.approx([0, 0.05, 0.1])


def test_the_scored_policy_goes_before_the_one_that_sampled() -> None:
    scored = replace(SAMPLE, old_logprobs=[0, -1.5, -2.0])
    assert reward().divergence(scored) == pytest.approx([0, 0, -1.0])


def test_the_coefficient_is_the_one_in_force() -> None:
    made = reward()
    made.control.value = 1.0
    assert made(SAMPLE) == pytest.approx([0, 0.5, -1.0])


def test_nothing_is_paid_unless_asked_for_and_not_without_a_reference() -> None:
    assert kl_reward(AlgorithmConfig()) is None
    with pytest.raises(ConfigError, match="use_kl_in_reward needs ref_logprobs"):
        reward()(replace(SAMPLE, ref_logprobs=None))
