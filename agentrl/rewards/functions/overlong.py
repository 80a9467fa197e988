"""Soft overlong punishment (DAPO, Yu et al. 2025, arXiv:2503.14476, equation 13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from pydantic import JsonValue

from agentrl.config.reward import OverlongBufferConfig
from agentrl.errors import ConfigError, Kind
from agentrl.rewards.base import Reward, close_reward


def overlong_penalty(length: int, max_length: int, buffer: int, factor: float) -> float:
    """min(0, -factor * (length - (max_length - buffer)) / buffer): 0 before the buffer, -factor at the buffer's end.

    Lengths are in tokens. Example: max_length is 16384 and the last 4096 tokens are the buffer. Then a response of
    14336 tokens costs factor / 2.
    """
    return min(0.0, -factor * (length - (max_length - buffer)) / buffer)


class OverlongReward:
    """A reward plus `overlong_penalty`, which is negative for a response near `max_length` tokens.

    The length of a response is the number of response tokens of its longest trajectory.

    Raises:
        ConfigError: the buffer is longer than `max_length`.
    """

    def __init__(self, reward: Reward, config: OverlongBufferConfig, max_length: int) -> None:
        if config.len > max_length:
            raise ConfigError.at(
                "reward.overlong_buffer.len",
                Kind.CONFLICT,
                f"reward.overlong_buffer.len={config.len} must be at most data.max_response_length={max_length}",
            )
        self._reward, self._config, self._max_length = reward, config, max_length

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`.

        Raises:
            ConfigError: the number of response tokens is unknown.
        """
        rewards = await self._reward(data_source, solution_str, ground_truth, extra_info)
        config = self._config
        penalty = overlong_penalty(_length(extra_info), self._max_length, config.len, config.penalty_factor)
        rewards = {**rewards, "score": rewards["score"] + penalty}
        return {**rewards, "overlong_reward": penalty, "overlong": float(penalty < 0)} if config.log else rewards

    def close(self) -> None:
        """Close the reward."""
        close_reward(self._reward)


def _length(extra_info: Mapping[str, object]) -> int:
    lengths = cast("list[int]", extra_info.get("response_lengths"))
    if not lengths:
        raise ConfigError.at(
            "reward.overlong_buffer",
            Kind.UNUSED,
            "reward.overlong_buffer needs responses as tokens, but these are text: remove it",
        )
    return max(lengths)
