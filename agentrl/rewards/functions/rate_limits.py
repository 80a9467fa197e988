"""Reward manager `rate_limited`: delays calls of a reward that uses a rate-limited service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext

from pydantic import JsonValue

from agentrl.config.reward import RewardConfig
from agentrl.rewards.base import Reward, close_reward
from agentrl.utils.rate_limiter import RateLimiter


class RateLimitedReward:
    """A reward with limits on call rate and parallel calls. Waiting for a limit does not count towards a timeout."""

    def __init__(
        self, reward: Reward, config: RewardConfig, limiter: Callable[[float], RateLimiter] = RateLimiter
    ) -> None:
        self._reward = reward
        self._limiters = [
            (limiter(per_minute), units)
            for per_minute, units in ((config.max_rpm, 1), (config.max_tpm, config.estimated_tokens_per_request))
            if per_minute is not None
        ]
        limit = config.max_concurrent
        self._slots: AbstractAsyncContextManager[object] = nullcontext() if limit is None else asyncio.Semaphore(limit)

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`."""
        async with self._slots:
            for limiter, units in self._limiters:
                await limiter.wait(units)
            return await self._reward(data_source, solution_str, ground_truth, extra_info)

    def close(self) -> None:
        """Close the reward."""
        close_reward(self._reward)
