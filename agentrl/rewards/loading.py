"""The reward that the configuration names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from pydantic import JsonValue

from agentrl.config.reward import CustomRewardConfig, RewardConfig
from agentrl.errors import ConfigError, DataError, UnknownNameError, suggestion
from agentrl.registry import load_object
from agentrl.rewards.base import Reward
from agentrl.rewards.builtin import SOURCES, rewards
from agentrl.rewards.function import FunctionReward
from agentrl.rewards.reward_funcs import RewardFuncs, takes_completions
from agentrl.signatures import name_of
from agentrl.task import Task

RewardLike: TypeAlias = Callable[..., object] | Sequence[Callable[..., object]] | None
"""`compute_score(data_source, solution_str, ground_truth, extra_info)`, or one or several of TRL's
`reward_func(prompts, completions, **columns)`, which are added up; None leaves the choice to the configuration."""


def load_reward(config: RewardConfig) -> Reward:
    """The user's function, a reward by name, or one that chooses by data source.

    Raises:
        ConfigError: a file, function or option that cannot be used.
        UnknownNameError: no reward is called so.
    """
    if config.custom_reward_function.path is not None:
        return _custom(config.custom_reward_function, config.timeout_s)
    if config.name == "auto":
        return AutoReward(config)
    return _named(config.name, config)


def given_reward(reward: RewardLike, config: RewardConfig) -> Reward | None:
    """The reward a caller in Python brings, if any.

    Raises:
        ConfigError: it is no function, or one that asks for something it is not given.
    """
    if reward is None:
        return None
    functions = list(reward) if isinstance(reward, Sequence) and not isinstance(reward, str) else [reward]
    if not functions or not all(map(callable, functions)):
        raise ConfigError(
            f"reward must be a function or a list of functions, not {reward!r:.100}:"
            " settings={'reward.name': ...} chooses a built-in one"
        )
    if all(map(takes_completions, functions)):
        return RewardFuncs(functions, config.timeout_s)
    if len(functions) > 1:
        raise ConfigError("several rewards must each take (prompts, completions, **columns)")
    kwargs = config.custom_reward_function.reward_kwargs
    return FunctionReward(functions[0], kwargs, config.timeout_s, name_of(functions[0]))


def check_data_source(config: RewardConfig, task: Task) -> None:
    """Refuse, at the start, a row that no built-in reward belongs to under `reward.name: auto`.

    Raises:
        DataError: names its data source and the known ones.
    """
    if config.custom_reward_function.path is None and config.name == "auto" and task.data_source not in SOURCES:
        raise DataError(_unknown_source(task.data_source))


class AutoReward:
    """Chooses the built-in reward by the row's data source."""

    def __init__(self, config: RewardConfig) -> None:
        self._by_source = {source: _named(name, config) for source, name in SOURCES.items()}

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """Rewards by name."""
        if data_source not in self._by_source:
            raise DataError(f"row {extra_info.get('index', 'unknown')}: {_unknown_source(data_source)}")
        return await self._by_source[data_source](data_source, solution_str, ground_truth, extra_info)

    def close(self) -> None:
        """Let the threads of its functions end."""
        for reward in self._by_source.values():
            reward.close()


def _custom(custom: CustomRewardConfig, timeout_s: float) -> Reward:
    where = "reward.custom_reward_function"
    if custom.path is None or custom.path.suffix != ".py":
        raise ConfigError(f"{where}.path must be a Python file, not '{custom.path}'")
    try:
        function = load_object(f"{custom.path}:{custom.name}")
    except UnknownNameError as error:
        raise ConfigError(f"{where}: {error}") from error
    if not callable(function):
        raise ConfigError(f"{where}: '{custom.name}' of '{custom.path}' is not a function")
    return FunctionReward(function, custom.reward_kwargs, timeout_s, custom.name)


def _named(name: str, config: RewardConfig) -> FunctionReward:
    return FunctionReward(rewards.get(name), config.custom_reward_function.reward_kwargs, config.timeout_s, name)


def _unknown_source(data_source: str) -> str:
    return (
        f"no built-in reward belongs to data_source '{data_source}' ({suggestion(data_source, SOURCES)}): "
        f"set reward.name ({', '.join(rewards.names())}; none generates unscored) or"
        " reward.custom_reward_function.path"
    )
