"""Reward manager `rate_limited`: delays calls of a reward that uses a rate-limited service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext

from pydantic import JsonValue

from agentrl.config.reward import RewardConfig
from agentrl.rewards.base import Reward, close_reward


class RateLimiter:
    """Rate limiter: callers pass one after another, at most `per_minute` units in any minute.

    There are no bursts: `n` units occupy n * 60 / per_minute seconds, in which no other caller passes.

    Args:
        now: seconds on a clock that never goes backwards.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        per_minute: float,
        now: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._seconds_each = 60 / per_minute
        self._now, self._sleep = now or _loop_time, sleep
        self._free_at = float("-inf")

    async def wait(self, units: float = 1.0) -> None:
        """Wait for this caller's turn, first come, first served."""
        now = self._now()
        begin = max(now, self._free_at)
        self._free_at = begin + units * self._seconds_each
        if begin > now:
            await self._sleep(begin - now)


class RateLimitedReward:
    """A reward with limits on call rate and parallel calls; the wait does not count towards a call's timeout."""

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


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
