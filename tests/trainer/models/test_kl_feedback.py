"""The adaptive coefficient of a KL in the reward: its updates, and its value after a resume."""

from __future__ import annotations

import asyncio
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algos.kl_reward import AdaptiveKL, FixedKL, KLReward
from agentrl.errors import ConfigError
from agentrl.trainer.models.kl_controller import FILE, KLFeedback, mean_kl
from agentrl.types.sample import Sample


def sample(rollout_id: str, *differences: float, mask=None) -> Sample:
    """Log-probabilities this far above the reference's; a prompt of one token precedes them."""
    num_tokens = len(differences) + 1
    return Sample(
        [1] * num_tokens,
        [0, *(mask or [1] * len(differences))],
        [1.0] * num_tokens,
        [0.0] * num_tokens,
        behaviour_logprobs=[0.0, *differences],
        ref_logprobs=[0.0] * num_tokens,
        rollout_id=rollout_id,
    )


def adaptive(value=0.5, target=0.1, horizon=100) -> KLReward:
    return KLReward(AdaptiveKL(value, target, horizon), "k1")


def step(feedback: KLFeedback, samples) -> dict[str, float]:
    return asyncio.run(feedback(samples, 0))


def test_the_mean_is_over_rollouts_of_the_mean_over_their_trained_tokens():
    samples = [sample("a", 1.0, 3.0), sample("b", 0.0, 9.0, mask=[1, 0]), sample("b", *[0.0] * 3)]
    assert mean_kl(adaptive(), samples) == (1.0, 2)


@given(st.lists(st.lists(st.floats(-4, 4, width=16), min_size=1, max_size=6), min_size=1, max_size=5), st.randoms())
def test_kl_feedback_does_not_depend_on_splitting_into_trajectories(rollouts, chance):
    whole = [sample(str(number), *values) for number, values in enumerate(rollouts)]
    cut = []
    for number, values in enumerate(rollouts):
        at = chance.randint(0, len(values) - 1)
        cut += [sample(str(number), *part) for part in (values[:at], values[at:]) if part]
    mean, num_rollouts = mean_kl(adaptive(), whole)
    assert num_rollouts == len(rollouts)
    assert mean_kl(adaptive(), cut)[0] == pytest.approx(mean, abs=1e-9)
    assert mean == pytest.approx(math.fsum(math.fsum(each) / len(each) for each in rollouts) / len(rollouts), abs=1e-9)


def test_a_step_is_logged_with_the_coefficient_it_was_credited_with():
    feedback = KLFeedback(adaptive())
    first, second = (step(feedback, [sample("a", 1.0), sample("b", 3.0)]) for _ in range(2))
    assert first == {"kl/reward_coef": 0.5, "kl/reward_mean": 2.0}
    # the error is clipped to 0.2; two rollouts, a horizon of 100
    assert second["kl/reward_coef"] == 0.5 * (1 + 0.2 * 2 / 100)


def test_fixed_coefficient_is_constant_and_empty_steps_report_nothing():
    feedback = KLFeedback(KLReward(FixedKL(0.25), "k1"))
    assert step(feedback, []) == {"kl/reward_coef": 0.25}
    step(feedback, [sample("a", 1.0)])
    assert step(feedback, [])["kl/reward_coef"] == 0.25


def test_a_resumed_run_keeps_the_coefficient(tmp_path):
    before, after = adaptive(0.1), adaptive(0.7)
    step(KLFeedback(before), [sample("a", 1.0 / 3)])
    asyncio.run(KLFeedback(before).save(tmp_path, None))
    asyncio.run(KLFeedback(after).load(tmp_path))
    assert after.control.value == before.control.value != 0.1


def test_an_old_checkpoint_without_coefficient_does_not_change_it(tmp_path):
    reward = adaptive(0.7)
    asyncio.run(KLFeedback(reward).load(tmp_path))
    assert reward.control.value == 0.7


@pytest.mark.parametrize("text", ["", "{}", "[]", json.dumps({"value": None}), json.dumps({"value": "x"})])
def test_damaged_file_is_named(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ConfigError, match=f"cannot resume from '{tmp_path}': {FILE}: "):
        asyncio.run(KLFeedback(adaptive()).load(tmp_path))
