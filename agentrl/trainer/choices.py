"""Chooses values for configuration keys that are not set, and prints them."""

from __future__ import annotations

from agentrl.config import RunConfig
from agentrl.config.resolve import Choice, ModelFacts, Purpose, notices, resolve, table
from agentrl.config.rules.megatron import has_layouts
from agentrl.config.rules.model_layout import check_layout
from agentrl.models.facts import model_facts


def resolved(config: RunConfig, purpose: Purpose | None = None) -> RunConfig:
    """Return the configuration with every key set. Print each chosen value with its reason.

    Args:
        purpose: None derives the purpose from `trainer.mode`.

    Raises:
        ConfigError: the model cannot be found, or the configured lengths or the parallel layout do not fit it.
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
    purpose = purpose or modes.get(config.trainer.mode, "train")
    facts = model_facts(config.model.path)
    if purpose == "train":
        _check_layouts(config, facts)
    return resolve(config, facts, purpose)


def _check_layouts(config: RunConfig, facts: ModelFacts) -> None:
    """Check that the parallel layout fits the policy, the reference and the critic.

    Raises:
        ConfigError: one line per mistake.
    """
    check_layout(config, facts.shape)
    for key, path in (("ref.path", config.ref.path), ("critic.path", config.critic.path)):
        if path is not None and has_layouts(config):
            check_layout(config, model_facts(path).shape, key)
