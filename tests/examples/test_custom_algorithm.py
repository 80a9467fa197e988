"""The example algorithm: selected in the configuration, with its options."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentrl.algos import estimate_advantages, policy_loss
from agentrl.algos.build import build_algorithm
from agentrl.cli.compose import compose_config
from agentrl.errors import ConfigError

FILE = Path(__file__).parents[2] / "examples/custom_algorithm/surplus.py"
MASK = torch.ones(3, 2)


def test_scores_are_measured_against_the_threshold() -> None:
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.25], [0.0, 9.0]])
    valid = [True, True, False]
    advantages, _ = estimate_advantages(f"{FILE}:surplus", rewards, MASK, ["task"] * 3, valid=valid, threshold=0.25)
    assert advantages.tolist() == [[0.75, 0.75], [0, 0], [0, 0]]


def test_ratios_above_the_cap_have_no_gradient() -> None:
    logprobs = torch.tensor([[0.0, 2.0]], requires_grad=True)
    loss, metrics = policy_loss(f"{FILE}:unclipped", logprobs, torch.zeros(1, 2), MASK[:1], MASK[:1], cap=3.0)
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
    assert loss.item() == -(1 + 3) / 2
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-0.5, 0]]
    assert metrics["ratio_mean"].item() == pytest.approx((1 + torch.e**2) / 2)


@pytest.mark.slow
def test_custom_estimator_and_loss_refuse_unknown_options() -> None:
    loss = f"actor.policy_loss.loss_mode={FILE}:unclipped"
    command = ["+experiment=calculator", f"algorithm.adv_estimator={FILE}:surplus", loss]
    build_algorithm(
        compose_config([*command, "algorithm.adv_options.threshold=0.3", "actor.policy_loss.options.cap=2"])
    )
    with pytest.raises(ConfigError, match="no option 'tresh': did you mean 'threshold'"):
        build_algorithm(compose_config([*command, "algorithm.adv_options.tresh=0.3"]))
    with pytest.raises(ConfigError, match=r"'actor.clip_ratio_high' has no effect"):
        build_algorithm(compose_config([*command, "actor.clip_ratio_high=0.3"]))
