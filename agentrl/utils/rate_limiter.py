"""Limits how many requests per minute callers send."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class RateLimiter:
    """Rate limiter without bursts: callers continue one at a time, in the order of their calls.

    A unit is what the limit counts, such as a request or a token. After a caller with `n` units continues, the next
    caller waits n * 60 / per_minute seconds.

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
        """Wait until the caller may continue; callers continue in the order of their calls."""
        now = self._now()
        begin = max(now, self._free_at)
        self._free_at = begin + units * self._seconds_each
        if begin > now:
            await self._sleep(begin - now)


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
