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


def test_recomputed_logprobs_are_preferred_to_sampled_ones() -> None:
    scored = replace(SAMPLE, old_logprobs=[0, -1.5, -2.0])
    assert reward().divergence(scored) == pytest.approx([0, 0, -1.0])


def test_the_coefficient_is_the_one_in_force() -> None:
    made = reward()
    made.control.value = 1.0
    assert made(SAMPLE) == pytest.approx([0, 0.5, -1.0])


def test_kl_reward_is_zero_unless_enabled_and_needs_a_reference() -> None:
    assert kl_reward(AlgorithmConfig()) is None
    with pytest.raises(ConfigError, match="use_kl_in_reward needs ref_logprobs"):
        reward()(replace(SAMPLE, ref_logprobs=None))
