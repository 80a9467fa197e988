"""The reward that the configuration names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from agentrl.config.reward import CustomRewardConfig, RewardConfig
from agentrl.errors import ConfigError, UnknownNameError
from agentrl.registry import load_object
from agentrl.rewards.base import Reward
from agentrl.rewards.builtin import SOURCES, rewards
from agentrl.rewards.function import FunctionReward
from agentrl.task import Task


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


def check_data_sources(config: RewardConfig, tasks: Iterable[Task]) -> None:
    """Refuse, at the start, rows that no built-in reward belongs to under `reward.name: auto`.

    Raises:
        ConfigError: names the row and its data source.
    """
    if config.custom_reward_function.path is None and config.name == "auto":
        for task in tasks:
            if task.data_source not in SOURCES:
                raise ConfigError(_unknown_source(task.data_source, f"row {task.index}"))


class AutoReward:
    """Chooses the built-in reward by the row's data source."""

    def __init__(self, config: RewardConfig) -> None:
        self._by_source = {source: _named(name, config) for source, name in SOURCES.items()}

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """Rewards by name."""
        if data_source not in self._by_source:
            raise ConfigError(_unknown_source(data_source, f"row {extra_info.get('index', 'unknown')}"))
        return await self._by_source[data_source](data_source, solution_str, ground_truth, extra_info)


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


def _unknown_source(data_source: str, row: str) -> str:
    return (
        f"{row}: no built-in reward belongs to data_source '{data_source}' (known: {', '.join(SOURCES)}): "
        f"set reward.name ({', '.join(rewards.names())}) or reward.custom_reward_function.path"
    )
