"""Loads the reward that the configuration names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeAlias, cast

from pydantic import JsonValue

from agentrl.config.reward import CustomRewardConfig, RewardConfig
from agentrl.config.rules.reward import rewards_asked
from agentrl.errors import ConfigError, DataError, Kind, UnknownNameError, suggestion
from agentrl.registry import load_object
from agentrl.rewards.base import NoVerdictError, Reward, close_reward, reward_models
from agentrl.rewards.builtin.data_sources import SOURCES, reward_of
from agentrl.rewards.builtin.registry import NEEDS_SANDBOX, NO_SANDBOX, rewards
from agentrl.rewards.functions.managers import Calling, calling, managed, takes_lists
from agentrl.rewards.functions.trl import RewardFuncs, takes_completions
from agentrl.rewards.mixing import load_mixture
from agentrl.types.task import Task
from agentrl.utils.signatures import keyword_filter, name_of, parameters_of

RewardLike: TypeAlias = Callable[..., object] | Sequence[Callable[..., object]] | None
"""One of:

- a function `compute_score(data_source, solution_str, ground_truth, extra_info)`
- one or more functions in TRL's form, `reward_func(prompts, completions, **columns)`, whose scores are summed
- None: the configuration names the reward
"""


def load_reward(
    config: RewardConfig,
    max_response_length: int | None = None,
    given_models: Mapping[str, Reward] = MappingProxyType({}),
) -> Reward:
    """Load the configured reward: a mixture, a user's function, a named reward, or `auto`. Apply the reward manager.

    Args:
        max_response_length: `data.max_response_length` in tokens, for `reward.overlong_buffer`.
        given_models: reward models by name; they replace the models that would be loaded.

    Raises:
        ConfigError: a file, a function or an option cannot be used.
        UnknownNameError: the configured reward does not exist.
    """
    choose = partial(_chosen, given_models=given_models)
    reward: Reward = load_mixture(config, choose) if config.components else choose(config)
    return managed(reward, config, max_response_length)


def given_reward(
    reward: RewardLike,
    config: RewardConfig,
    max_response_length: int | None = None,
    *,
    has_environment: bool = False,
) -> Reward | None:
    """Build a reward from the functions that a Python caller passes; None if the caller passes none.

    Args:
        has_environment: whether functions in TRL's form may require the argument `environments`.

    Raises:
        ConfigError: the reward is not a function, or it requires an argument that agentrl does not pass.
    """
    if reward is None:
        return None
    functions = list(reward) if isinstance(reward, Sequence) and not isinstance(reward, str) else [reward]
    if not functions or not all(map(callable, functions)):
        raise ConfigError.keyless(
            f"reward must be a function or a list of functions, not {reward!r:.100}:"
            " settings={'reward.name': ...} chooses a built-in one"
        )
    return managed(_of_functions(functions, config, has_environment), config, max_response_length)


def check_data_source(config: RewardConfig, task: Task) -> None:
    """With `reward.name: auto`, reject a row for whose data source no built-in reward can be used.

    This check runs at the start of a run.

    Raises:
        DataError: the row has no reward. The message names the data source, and known sources or a missing option.
    """
    if config.custom_reward_function.path is not None or rewards_asked(config) != {"auto"}:
        return
    name = reward_of(task.data_source)
    if name is None:
        raise DataError(_unknown_source(task.data_source))
    if name == NEEDS_SANDBOX and not has_sandbox(config):
        raise DataError(_no_sandbox(task.data_source))


def has_sandbox(config: RewardConfig) -> bool:
    """Whether a sandbox is configured, so that rewards can run code that a model wrote."""
    return config.sandbox is not None or config.sandbox_fusion.url is not None


class UnroutedError(DataError, NoVerdictError):
    """No built-in reward can be used for the row's data source; in a mixture another component may score the row."""


class AutoReward:
    """Chooses the built-in reward by the row's data source; each reward gets the `reward_kwargs` that it accepts.

    Raises:
        ConfigError: one of the `reward_kwargs` is accepted by no built-in reward.
    """

    def __init__(self, config: RewardConfig) -> None:
        kwargs = config.custom_reward_function.reward_kwargs
        names = [name for name in dict.fromkeys(SOURCES.values()) if name != NEEDS_SANDBOX or has_sandbox(config)]
        taken = {name: keyword_filter(rewards.get(name))(kwargs) for name in names}
        for key in kwargs:
            if not any(key in each for each in taken.values()):
                raise ConfigError.at(
                    "reward.custom_reward_function.reward_kwargs",
                    Kind.UNUSED,
                    f"no built-in reward accepts reward_kwargs.{key}",
                )
        call = calling(config)
        self._by_name = {
            name: _named(name, config, call, cast("dict[str, JsonValue]", own)) for name, own in taken.items()
        }

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`."""
        name = reward_of(data_source)
        if name is None or name not in self._by_name:
            why = _unknown_source(data_source) if name is None else _no_sandbox(data_source)
            raise UnroutedError(f"row {extra_info.get('index', 'unknown')}: {why}")
        return await self._by_name[name](data_source, solution_str, ground_truth, extra_info)

    def close(self) -> None:
        """Stop the threads and processes of the functions."""
        for reward in self._by_name.values():
            close_reward(reward)


def _chosen(config: RewardConfig, given_models: Mapping[str, Reward]) -> Reward:
    """Return the configured reward; the reward manager decides how a reward function is called."""
    if config.custom_reward_function.path is not None:
        return _custom(config.custom_reward_function, config)
    if config.name in given_models:
        return given_models[config.name]
    if config.name in reward_models.names():
        return reward_models.get(config.name)(config)
    if takes_lists(config):
        raise ConfigError.at(
            "reward.reward_manager.name",
            Kind.CONFLICT,
            "reward.reward_manager.name=batch needs a function that takes lists: set"
            f" reward.custom_reward_function.path; the built-in '{config.name}' scores one rollout at a time",
        )
    if config.name == "auto":
        return AutoReward(config)
    return _named(config.name, config, calling(config), config.custom_reward_function.reward_kwargs)


def _of_functions(functions: Sequence[Callable[..., object]], config: RewardConfig, has_environment: bool) -> Reward:
    if all(map(takes_completions, functions)):
        return RewardFuncs(functions, config, has_environment)
    if len(functions) > 1:
        raise ConfigError.keyless("each of several rewards must accept (prompts, completions, **columns)")
    kwargs = config.custom_reward_function.reward_kwargs
    return calling(config)(functions[0], kwargs, name_of(functions[0]))


def _custom(custom: CustomRewardConfig, config: RewardConfig) -> Reward:
    where = "reward.custom_reward_function"
    if custom.path is None or custom.path.suffix != ".py":
        raise ConfigError.at(
            f"{where}.path", Kind.WRONG_VALUE, f"{where}.path must be a Python file, not '{custom.path}'"
        )
    try:
        function = load_object(f"{custom.path}:{custom.name}")
    except UnknownNameError as error:
        raise ConfigError.at(f"{where}.path", Kind.NOT_FOUND, f"{where}: {error}") from error
    if not callable(function):
        raise ConfigError.at(
            f"{where}.name", Kind.WRONG_VALUE, f"{where}: '{custom.name}' of '{custom.path}' is not a function"
        )
    return calling(config)(function, custom.reward_kwargs, custom.name)


def _named(name: str, config: RewardConfig, call: Calling, kwargs: Mapping[str, JsonValue]) -> Reward:
    item = rewards.get(name)
    if not inspect.isclass(item):
        return call(item, kwargs, name)
    known = [*parameters_of(item, f"reward '{name}'")][1:]
    for key in kwargs:
        if key not in known:
            raise ConfigError.at(
                "reward.custom_reward_function.reward_kwargs",
                Kind.NOT_FOUND,
                f"reward '{name}' does not accept reward_kwargs.{key}: {suggestion(key, known)}",
            )
    return cast("Callable[..., Reward]", item)(config, **kwargs)


def _unknown_source(data_source: str) -> str:
    return (
        f"there is no built-in reward for data_source '{data_source}' ({suggestion(data_source, SOURCES)}): "
        f"set reward.name ({', '.join([*rewards.names(), *reward_models.names()])}; `none` gives no score) or"
        " reward.custom_reward_function.path"
    )


def _no_sandbox(data_source: str) -> str:
    return f"data_source '{data_source}' needs to run code: {NO_SANDBOX}"
