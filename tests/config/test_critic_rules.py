"""What a critic cannot honour is refused by key."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config.rules import check_rules, check_training
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError


def complaint(**sections: dict[str, Any]) -> str:  # Any: whatever a key holds
    base = {"data": {"train_files": ["a.jsonl"], "train_batch_size": 8}, "rollout": {"n": 2}}
    config = RunConfig.model_validate({"model": {"path": "m"}, **base, **sections})
    try:
        check_rules(config)
        check_training(config)
    except ConfigError as error:
        return str(error)
    return ""


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
    ("critic", "trainer", "said"),
    [
        ({"ppo_mini_batch_size": 3}, {}, "'critic.ppo_mini_batch_size=3' must divide 'data.train_batch_size'"),
        ({}, {"critic_warmup": 5, "total_training_steps": 5}, "'trainer.critic_warmup=5' leaves the policy no step"),
        ({"optim": {"muon_lr": 0.1}}, {}, "'critic.optim.muon_lr' has no effect without 'critic.optim.name=muon'"),
        ({"optim": {"min_lr_ratio": 0.1}}, {}, "'critic.optim.min_lr_ratio' has no effect without a schedule"),
    ],
)
def test_what_does_not_fit_is_named(critic: dict[str, Any], trainer: dict[str, Any], said: str):
    assert said in complaint(algorithm=PPO, critic=critic, trainer=trainer)
