"""Chooses values for configuration keys that are not set, and prints them."""

from __future__ import annotations

from agentrl.config import RunConfig
from agentrl.config.resolve import Choice, Purpose, notices, resolve, table
from agentrl.models.facts import model_facts


def resolved(config: RunConfig, purpose: Purpose | None = None) -> RunConfig:
    """Return the configuration with every key set. Print each chosen value with its reason.

    Args:
        purpose: None derives the purpose from `trainer.mode`.

    Raises:
        ConfigError: the model cannot be found, or the configured lengths exceed the model's limits.
    """
    config, choices = choose(config, purpose)
    for line in notices(config):
        print(f"notice: {line}")
    if choices:
        print(f"chosen for this run (set a key to override it):\n{table(choices)}")
    return config


def choose(config: RunConfig, purpose: Purpose | None = None) -> tuple[RunConfig, list[Choice]]:
    """Like `resolved`, but return the choices and print nothing."""
    modes: dict[str, Purpose] = {"rollout_only": "rollout", "val_only": "eval"}
    return resolve(config, model_facts(config.model.path), purpose or modes.get(config.trainer.mode, "train"))
