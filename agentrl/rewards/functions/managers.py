"""Reward managers (`reward.reward_manager`), and wrappers around the reward such as bounds and overlong penalty."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from pydantic import JsonValue

from agentrl.config.reward import RewardConfig
from agentrl.errors import ConfigError, Kind, UnknownNameError, suggestion
from agentrl.registry import load_module
from agentrl.rewards.base import BoundedReward, Reward
from agentrl.rewards.functions.batch import BatchReward
from agentrl.rewards.functions.function import FunctionReward
from agentrl.rewards.functions.overlong import OverlongReward
from agentrl.rewards.functions.processes import ProcessReward, ScorePool
from agentrl.rewards.functions.rate_limits import RateLimitedReward
from agentrl.utils.signatures import parameters_of

Calling = Callable[[Callable[..., object], Mapping[str, JsonValue], str], Reward]
"""Builds a reward from a function, extra keyword arguments for the function, and the reward's name."""


def calling(config: RewardConfig) -> Calling:
    """Choose how reward functions are called: on threads, in processes (`prime`), or with lists (`batch`)."""
    manager = config.reward_manager
    if manager.source == "register" and manager.name == "batch":
        return lambda function, kwargs, name: BatchReward(function, kwargs, config, name)
    if manager.source == "register" and manager.name == "prime":
        pool = ScorePool(config.num_workers)  # shared by all functions of this reward
        return lambda function, kwargs, name: ProcessReward(function, kwargs, config.timeout_s, name, pool)
    return lambda function, kwargs, name: FunctionReward(function, kwargs, config.timeout_s, name)


def takes_lists(config: RewardConfig) -> bool:
    """Whether functions are called with lists of rollouts."""
    return config.reward_manager.source == "register" and config.reward_manager.name == "batch"


def managed(reward: Reward, config: RewardConfig, max_response_length: int | None) -> Reward:
    """Wrap the reward for a run: rate limits or the user's manager, bounds, overlong penalty.

    Args:
        max_response_length: `data.max_response_length`, in tokens.

    Raises:
        ConfigError: options contradict each other.
        UnknownNameError: the configured manager does not exist.
    """
    manager, overlong = config.reward_manager, config.overlong_buffer
    if manager.source == "importlib":
        reward = _own_manager(reward, config)
    elif manager.name == "rate_limited":
        reward = RateLimitedReward(reward, config)
    if config.range is not None:
        reward = BoundedReward(reward, config.range)
    if overlong.enable:
        if max_response_length is None:
            raise ConfigError.at(
                "reward.overlong_buffer",
                Kind.MISSING,
                "reward.overlong_buffer needs data.max_response_length, which only a run has: remove it",
            )
        reward = OverlongReward(reward, overlong, max_response_length)
    return reward


def _own_manager(reward: Reward, config: RewardConfig) -> Reward:
    """Build the user-defined `Manager(reward, config)`, which is also a `Reward`."""
    where = "reward.reward_manager"
    path, name = str(config.reward_manager.module.path), config.reward_manager.name
    try:
        module = load_module(path)
    except UnknownNameError as error:
        raise ConfigError.at(f"{where}.module.path", Kind.NOT_FOUND, f"{where}.module.path: {error}") from error
    kind = getattr(module, name, None)
    if kind is None:
        public = [each for each in vars(module) if not each.startswith("_")]
        raise ConfigError.at(
            f"{where}.name", Kind.NOT_FOUND, f"{where}.name: '{path}' has no '{name}': {suggestion(name, public)}"
        )
    if hasattr(kind, "run_single") or not callable(kind) or len(parameters_of(kind, where)) < 2:
        raise ConfigError.at(
            f"{where}.name",
            Kind.WRONG_VALUE,
            f"{where}.name: '{name}' must accept (reward, config) and return an async function"
            " reward(data_source, solution_str, ground_truth, extra_info) (docs/rewards.md)",
        )
    made = kind(reward, config)
    if not any(map(inspect.iscoroutinefunction, (made, type(made).__call__))):
        raise ConfigError.at(
            f"{where}.name",
            Kind.WRONG_VALUE,
            f"{where}.name: the object that '{name}' returns must have an async __call__ (docs/rewards.md)",
        )
    return made  # type: ignore[no-any-return]  # the user's object, checked above
