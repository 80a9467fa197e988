"""Options from the configuration for the chosen advantage estimator and loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from agentrl.algos.advantages.registry import ADVANTAGE_ESTIMATORS
from agentrl.algos.losses.registry import POLICY_LOSSES
from agentrl.algos.options import options_of
from agentrl.algos.preference.losses import PREFERENCE_LOSSES
from agentrl.config.actor import ActorConfig
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.errors import ConfigError, Kind, Problem, UnknownNameError, suggestion
from agentrl.registry import Registry

Options: TypeAlias = dict[str, Any]  # each estimator and loss defines the types of its options
Named: TypeAlias = Mapping[str, tuple[str, object]]
"""option -> (configuration key, value); the value is None if the key is not set."""
Found = TypeVar("Found")

_LOSS_KEY = "actor.policy_loss.loss_mode"


def estimator_options(algorithm: AlgorithmConfig) -> Options:
    """Return the options that the configuration sets for `algorithm.estimator`.

    Raises:
        ConfigError: a key is set that the estimator does not accept.
        UnknownNameError: there is no such estimator.
    """
    named: Named = {
        "gamma": ("algorithm.gamma", algorithm.gamma),
        "lam": ("algorithm.lam", algorithm.lam),
        "norm_adv_by_std": ("algorithm.norm_adv_by_std_in_grpo", None if algorithm.norm_adv_by_std_in_grpo else False),
        "gdpo_reward_keys": ("algorithm.gdpo_reward_keys", algorithm.gdpo_reward_keys or None),
        "gdpo_reward_weights": ("algorithm.gdpo_reward_weights", algorithm.gdpo_reward_weights or None),
    }
    function = _named(ADVANTAGE_ESTIMATORS, algorithm.estimator, "algorithm.adv_estimator")
    what = f"advantage estimator '{algorithm.estimator}'"
    return _taken(what, function, named, "algorithm.adv_options", algorithm.adv_options)


def policy_loss_options(name: str, actor: ActorConfig) -> Options:
    """Return the options of the policy loss `name`. Where `clip_ratio_low` or `_high` is not set, use `clip_ratio`.

    Raises:
        ConfigError: a key is set that the loss does not accept.
        UnknownNameError: there is no such loss.
    """
    settings, function = actor.policy_loss, _named(POLICY_LOSSES, name, _LOSS_KEY)
    named: dict[str, tuple[str, object]] = {
        key: (f"actor.{key}", getattr(actor, key))
        for key in ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg")
    }
    for side in ("clip_ratio_low", "clip_ratio_high"):
        if named[side][1] is None:
            named[side] = ("actor.clip_ratio", actor.clip_ratio)
    for key in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef"):
        named[key] = (f"actor.policy_loss.{key}", getattr(settings, key))
    return _taken(f"policy loss '{name}'", function, named, "actor.policy_loss.options", settings.options)


def preference_loss_options(name: str, actor: ActorConfig) -> Options:
    """Return the options of the preference loss `name`.

    Raises:
        ConfigError: an option is set that the loss does not accept.
        UnknownNameError: there is no such loss.
    """
    function = _named(PREFERENCE_LOSSES, name, _LOSS_KEY)
    return _taken(f"preference loss '{name}'", function, {}, "actor.policy_loss.options", actor.policy_loss.options)


def _named(registry: Registry[Found], name: str, key: str) -> Found:
    try:
        return registry.get(name)
    except UnknownNameError as error:
        raise UnknownNameError(f"'{key}': {error}") from None


def _taken(
    what: str, function: Callable[..., object], named: Named, where: str, others: Mapping[str, object]
) -> Options:
    takes = options_of(function)
    given = {option: value for option, (_, value) in named.items() if value is not None}
    for option in given.keys() - set(takes):
        key = named[option][0]
        # a key may set two options; the key has an effect if the function accepts either option
        if not any(named[each][0] == key for each in given.keys() & set(takes)):
            text = f"`{key}` has no effect: {what} accepts {', '.join(takes) or 'no options'}"
            raise ConfigError(Problem(key, Kind.UNUSED, text))
    for option, value in others.items():
        if option not in takes:
            text = f"`{where}`: {what} has no option '{option}': {suggestion(option, takes)}"
            raise ConfigError(Problem(where, Kind.UNKNOWN_KEY, text))
        if option in named:
            text = f"`{where}.{option}`: write it as `{named[option][0]}`"
            raise ConfigError(Problem(f"{where}.{option}", Kind.WRONG_VALUE, text))
        _check_kind(f"{where}.{option}", function, option, value)
    return {**{option: value for option, value in given.items() if option in takes}, **others}


_KINDS: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,)}


def _check_kind(key: str, function: Callable[..., object], option: str, value: object) -> None:
    """Check the value's type, if the function annotates the option with a simple type."""
    annotation = inspect.signature(function).parameters[option].annotation
    type_name = getattr(annotation, "__name__", str(annotation))  # postponed annotations are strings
    kinds = _KINDS.get(type_name)
    if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
        raise ConfigError(Problem(key, Kind.WRONG_VALUE, f"`{key}`: input should be a {type_name}, got {value!r}"))
