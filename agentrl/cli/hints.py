"""Suggestions for wrong words on the command line."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_OTHER_NAMES = {
    "model": "model.path",
    "model_name_or_path": "model.path",
    "data": "data.train_files",
    "dataset": "data.train_files",
    "train": "data.train_files",
    "val": "data.val_files",
    "reward": "reward.custom_reward_function.path",
    "lr": "actor.optim.lr",
    "learning_rate": "actor.optim.lr",
    "batch_size": "data.train_batch_size",
    "num_generations": "rollout.n",
    "n": "rollout.n",
    "group_size": "rollout.n",
    "epochs": "trainer.total_epochs",
    "steps": "trainer.total_training_steps",
    "max_steps": "trainer.total_training_steps",
    "output_dir": "trainer.default_local_dir",
    "out": "trainer.default_local_dir",
    "tools": "rollout.multi_turn.function_tool_path",
    "environment_factory": "rollout.multi_turn.environment",
    "max_turns": "rollout.multi_turn.max_assistant_turns",
    "seed": "trainer.seed",
    "beta": "algorithm.beta",
}
"""Name in other frameworks -> key of agentrl."""


def key_for(name: str) -> str | None:
    """Return the key that `name` probably means; None if no key is similar.

    `name` may be a key, the last part of a key, or a name in another framework.
    """
    from agentrl.config.validate import config_fields  # imports pydantic; needed only for errors

    keys = [key for key, _ in config_fields()]
    name = name.replace("-", "_")
    if name in keys:
        return name
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    ends = [key for key in keys if key.rpartition(".")[2] == name]
    near = difflib.get_close_matches(name, keys, n=1, cutoff=0.75)
    return next(iter(ends or near), None)


def of_flag(word: str, flags: Collection[str], takes_keys: bool) -> str:
    """Return the hint for an unknown flag, to append to the error message."""
    if near := difflib.get_close_matches(word.partition("=")[0], flags, n=1, cutoff=0.75):
        return f" (did you mean '{near[0]}'?)"
    name, _, value = word.lstrip("-").partition("=")
    if takes_keys and (key := key_for(name)):
        return f" (keys have no dashes: '{key}={value or 'VALUE'}')"
    return ""


def of_word(word: str) -> str:
    """Return the error message for a word that is not `key=value`."""
    if word in ("=", ":"):
        return f"cannot read '{word}': write key=value without spaces"
    name = word.lstrip("+~").rstrip(":=")
    if key := key_for(name):
        return f"cannot read '{word}': a key needs a value, '{key}=VALUE' without spaces"
    return f"cannot read '{word}': expected key=value; `agentrl config WORD` finds keys"
