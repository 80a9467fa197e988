"""Combinations that a critic would not honour, or that have none to honour them."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.config.idle import every, unused
from agentrl.config.presets import PRESETS
from agentrl.config.run import RunConfig

_WITHOUT_CRITIC = {preset.adv_estimator for preset in PRESETS.values()} - {"gae"}
"""Estimators of one's own may ask for values."""


def idle_in_critic(config: RunConfig) -> Iterator[str]:
    """Lines of what changes nothing in training."""
    if config.algorithm.estimator not in _WITHOUT_CRITIC:
        return
    need = "a critic ('algorithm.name=gae')"
    yield from unused("critic", config.critic, every(config.critic), need)
    yield from unused("trainer", config.trainer, ("critic_warmup",), need)


def wrong_in_critic(config: RunConfig) -> Iterator[str]:
    """Lines that make training impossible."""
    mini_batch, trainer = config.critic.ppo_mini_batch_size, config.trainer
    if mini_batch and config.data.train_batch_size % mini_batch:
        yield f"'critic.ppo_mini_batch_size={mini_batch}' must divide 'data.train_batch_size'"
    if trainer.total_training_steps and trainer.critic_warmup >= trainer.total_training_steps:
        warmup = f"'trainer.critic_warmup={trainer.critic_warmup}'"
        yield f"{warmup} leaves the policy no step: set it below 'trainer.total_training_steps'"
