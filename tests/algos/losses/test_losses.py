from __future__ import annotations

import math
import random

import pytest
import torch

from agentrl.algos import policy_loss
from agentrl.errors import ConfigError

LOW, HIGH, C = 0.2, 0.3, 3.0


def ppo_token_loss(ratio: float, advantage: float) -> float:
    """Equation 7 of the PPO paper, negated; negative advantages use the dual-clip bound."""
    objective = min(ratio * advantage, min(max(ratio, 1 - LOW), 1 + HIGH) * advantage)
    return -max(objective, C * advantage) if advantage < 0 else -objective


def vanilla(ratios: list[float], advantages: list[float]) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
    logprobs = torch.tensor([[math.log(ratio) - 1 for ratio in ratios]], dtype=torch.float64, requires_grad=True)
    loss, metrics = policy_loss(
        "vanilla",
        logprobs,
        torch.full_like(logprobs, -1.0),
        torch.tensor([advantages], dtype=torch.float64),
        torch.ones(1, len(ratios)),
        clip_ratio_low=LOW,
        clip_ratio_high=HIGH,
        clip_ratio_c=C,
    )
    loss.backward()
    return loss, metrics, logprobs.grad[0]


def test_vanilla_equals_the_formula():
    draw = random.Random(0)
    ratios = [math.exp(draw.uniform(-2, 2)) for _ in range(200)]
    advantages = [draw.uniform(-2, 2) for _ in ratios]
    expected = [ppo_token_loss(r, a) for r, a in zip(ratios, advantages, strict=True)]
    assert vanilla(ratios, advantages)[0].item() == pytest.approx(sum(expected) / len(expected))


def test_vanilla_gradient_inside_the_clip_range():
    #         inside   above,+  below,+  above,-  below,-  beyond c,-
    ratios = [1.1, 1.5, 0.5, 1.5, 0.5, 4.0]
    signs = [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]
    _, metrics, gradient = vanilla(ratios, signs)
    expected = [-1.1, 0.0, -0.5, 1.5, 0.0, 0.0]
    assert gradient.tolist() == pytest.approx([value / 6 for value in expected])
    assert metrics["pg_clipfrac"].item() == pytest.approx(2 / 6)
    assert metrics["pg_clipfrac_lower"].item() == pytest.approx(1 / 6)
    assert metrics["ratio_mean"].item() == pytest.approx(sum(ratios) / 6)
    assert metrics["ppo_kl"].item() == pytest.approx(-sum(map(math.log, ratios)) / 6)


def test_on_policy_gradient_is_reinforce():
    _, metrics, gradient = vanilla([1.0, 1.0], [0.7, -0.4])
    assert gradient.tolist() == pytest.approx([-0.35, 0.2])
    assert metrics["pg_clipfrac"] == metrics["pg_clipfrac_lower"] == metrics["ppo_kl"] == 0


def test_vanilla_stays_finite_off_the_mask_and_far_off_policy():
    logprobs = torch.tensor([[0.0, float("-inf"), -1.0]], requires_grad=True)
    old = torch.tensor([[-500.0, -1.0, float("nan")]])
    loss, metrics = policy_loss("vanilla", logprobs, old, torch.ones(1, 3), torch.tensor([[1, 1, 0]]))
    assert loss.isfinite()
    assert all(value.isfinite() for value in metrics.values())


def test_sft_is_the_weighted_negative_log_likelihood():
    logprobs = torch.tensor([[-1.0, -2.0, -4.0]], requires_grad=True)
    loss, metrics = policy_loss("sft", logprobs, None, torch.tensor([[1.0, 0.5, 1.0]]), torch.tensor([[1, 1, 0]]))
    loss.backward()
    assert loss.item() == pytest.approx((1 + 1) / 2)
    assert logprobs.grad.tolist() == [[-0.5, -0.25, 0]]
    assert metrics["nll"].item() == pytest.approx(1.5)


def test_aggregation_weights_of_the_complete_mini_batch_are_used():
    logprobs = torch.tensor([[-1.0, -2.0], [-4.0, -8.0]])
    ones = torch.ones(2, 2)
    loss, _ = policy_loss("sft", logprobs, None, ones, ones, weights=torch.tensor([0.5, 0.25]), denominator=10.0)
    assert loss.item() == pytest.approx((0.5 * 3 + 0.25 * 12) / 10)


def test_invalid_losses_and_options_are_refused():
    ones = torch.ones(1, 1)
    with pytest.raises(ConfigError, match="old_logprobs is None"):
        policy_loss("vanilla", ones, None, ones, ones)
    with pytest.raises(ConfigError, match="'clip_low': did you mean 'clip_ratio_low'"):
        policy_loss("vanilla", ones, ones, ones, ones, clip_low=0.1)


def test_rows_of_a_rollout_are_one_sequence_in_the_mean_too():
    logprobs, advantages = torch.zeros(3, 2), torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 0.0]])
    mask = torch.tensor([[1, 1], [1, 1], [1, 0]])
    rollouts = torch.tensor([7, 7, 2])
    loss, _ = policy_loss(
        "vanilla", logprobs, logprobs, advantages, mask, rollouts=rollouts, aggregation="seq-mean-token-mean"
    )
    assert loss.item() == pytest.approx(-(6 / 4 + 4) / 2)
