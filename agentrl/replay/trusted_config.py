"""Filter for a saved run's configuration: keeps plain values and names of built-in components."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentrl.agent_loops.base import agent_loops
from agentrl.capabilities import BACKENDS
from agentrl.chat.parsers import AUTO, tool_parsers
from agentrl.config.base import Section
from agentrl.config.presets import PRESETS
from agentrl.config.reward import MANAGERS, NO_REWARD
from agentrl.config.rollout import CREDIT_RULES, TRAIN_RULES
from agentrl.config.rules.reward import JUDGE, REWARD_MODEL
from agentrl.config.run import RunConfig
from agentrl.config.uses import Mark, Use, mark_of
from agentrl.config.validate import config_fields, section_of
from agentrl.rewards.builtin.registry import rewards

_ATTENTION = frozenset({"eager", "sdpa", "flex_attention"})  # other kernels may run code downloaded from the hub
_LOSSES = frozenset(preset.loss for preset in PRESETS.values() if preset.family == "preference")
_REWARDS = frozenset({"auto", NO_REWARD, JUDGE, REWARD_MODEL})


def _is_our_estimator(name: str) -> bool:
    from agentrl.algos.advantages.registry import ADVANTAGE_ESTIMATORS  # imports torch

    return ADVANTAGE_ESTIMATORS.is_builtin(name)


def _is_our_loss(name: str) -> bool:
    from agentrl.algos.losses.registry import POLICY_LOSSES  # imports torch

    return name in _LOSSES or POLICY_LOSSES.is_builtin(name)


BUILT_IN: Mapping[str, Callable[[str], bool]] = {
    "agent loop": agent_loops.is_builtin,
    "tool parser": lambda name: name == AUTO or tool_parsers.is_builtin(name),
    "backend": BACKENDS.is_builtin,
    "attention": _ATTENTION.__contains__,
    "advantage estimator": _is_our_estimator,
    "policy loss": _is_our_loss,
    "reward": lambda name: name in _REWARDS or rewards.is_builtin(name),
    "gateway rule": {*TRAIN_RULES, *CREDIT_RULES}.__contains__,
    "reward manager": MANAGERS.__contains__,
}
"""Kind of component (`Mark.component`) -> function that returns whether a name is built into agentrl, torch or
transformers."""


def trusted_values(saved: Mapping[str, object], section: type[Section] = RunConfig) -> dict[str, object]:
    """Return the nested values of `saved` that are safe to use even if the author of the run is unknown.

    Unknown and unsafe keys are dropped. An optional section is dropped if one of its required keys was dropped.
    """
    result: dict[str, object] = {}
    for name, field in section.model_fields.items():
        if name not in saved:
            continue
        inner, value = section_of(field), saved[name]
        if inner is None:
            if is_trusted(mark_of(field), value):
                result[name] = value
        elif isinstance(value, Mapping):
            values = trusted_values(value, inner)
            if field.is_required() or _required(inner) <= values.keys():
                result[name] = values
    return result


def is_trusted(mark: Mark, value: object) -> bool:
    """Whether the value of a configuration key is safe to use; `mark` describes how the key is used."""
    if mark.use is Use.PLAIN or value is None:
        return True
    return bool(mark.component) and isinstance(value, str) and BUILT_IN[mark.component](value)


def dropped_values(saved: Mapping[str, object]) -> dict[str, object]:
    """Return dotted key -> value for the values that are dropped as unsafe. Empty and false values are not listed."""
    values = ((mark_of(field), key, lookup(saved, key)) for key, field in config_fields())
    return {key: value for mark, key, value in values if value and not is_trusted(mark, value)}


def lookup(values: object, key: str) -> object:
    """Return the nested value under a dotted key; None if the key is missing."""
    for name in key.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _required(section: type[Section]) -> set[str]:
    return {name for name, field in section.model_fields.items() if field.is_required()}
