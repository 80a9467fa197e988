"""Options that a critic does not support are refused by key."""

from __future__ import annotations

from typing import Any

import pytest
from complaints import complaint, keys_and_kinds, problems_of

from agentrl.errors import Kind

PPO = {"name": "gae"}


def test_a_critic_s_keys_are_for_algorithms_that_have_one():
    critic, trainer = {"cliprange_value": 0.2, "ppo_epochs": 2}, {"critic_warmup": 3}
    said = complaint(critic=critic, trainer=trainer).splitlines()
    need = "has no effect without a critic ('algorithm.name=gae')"
    assert set(said) == {
        f"'critic.cliprange_value' {need}",
        f"'critic.ppo_epochs' {need}",
        f"'trainer.critic_warmup' {need}",
    }
    assert complaint(algorithm=PPO, critic=critic, trainer=trainer) == ""
    assert complaint(algorithm={"adv_estimator": "mine.py:with_values"}, critic=critic) == ""


@pytest.mark.parametrize(
    ("critic", "trainer", "problem"),
    [
        ({"ppo_mini_batch_size": 3}, {}, ("critic.ppo_mini_batch_size", Kind.WRONG_VALUE)),
        ({}, {"critic_warmup": 5, "total_training_steps": 5}, ("trainer.critic_warmup", Kind.WRONG_VALUE)),
        ({"optim": {"muon_lr": 0.1}}, {}, ("critic.optim.muon_lr", Kind.UNUSED)),
        ({"optim": {"min_lr_ratio": 0.1}}, {}, ("critic.optim.min_lr_ratio", Kind.UNUSED)),
    ],
)
def test_unsupported_settings_are_named(critic: dict[str, Any], trainer: dict[str, Any], problem: tuple[str, Kind]):
    assert problem in keys_and_kinds(problems_of(algorithm=PPO, critic=critic, trainer=trainer))
