"""Retry policy for requests to servers such as judges: growing waits, and pauses that the server requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TypeVar
from zlib import crc32

T = TypeVar("T")

FIRST_WAIT_S, MAX_WAIT_S = 0.5, 30.0
"""Seconds to wait before the first retry, and the maximum wait. The wait doubles with each retry."""
MAX_RETRY_AFTER_S = 300.0
"""If a server requests a longer wait, the request fails."""
_BUSY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


class TryAgainError(Exception):
    """This try failed, but the next try may succeed; `wait_s` is the wait that the server requested."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class GaveUpError(Exception):
    """All tries failed, or the server requested too long a wait; the text is one line with the reason."""


class Retries:
    """Retry state shared by all callers of one server, on one event loop.

    Args:
        max_concurrent: maximum number of concurrent tries; further tries wait.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self, num_tries: int, max_concurrent: int, sleep: Callable[[float], Awaitable[object]] | None = None
    ) -> None:
        self._num_tries, self._sleep = num_tries, sleep or asyncio.sleep
        self._slots = asyncio.Semaphore(max_concurrent)
        self._free_at = 0.0  # callers wait until this time of the event loop, because the server requested it

    async def run(self, attempt: Callable[[], Awaitable[T]], body: bytes) -> T:
        """Return the result of the first successful `attempt`. Another attempt follows only after a `TryAgainError`.

        Args:
            body: the request's body. Its hash makes waits differ, so that callers do not retry at the same time.

        Raises:
            GaveUpError: all tries failed, or the server requested too long a wait.
        """
        for number in range(self._num_tries):
            try:
                return await self._try(attempt)
            except TryAgainError as error:
                failure = error
            if number + 1 < self._num_tries:
                await self._wait(failure.wait_s, number, body)
        raise GaveUpError(f"{self._num_tries} tries failed, last error: {failure}") from failure

    async def _try(self, attempt: Callable[[], Awaitable[T]]) -> T:
        async with self._slots:
            if (rest_s := self._free_at - asyncio.get_running_loop().time()) > 0:
                await self._sleep(rest_s)
            return await attempt()

    async def _wait(self, wait_s: float | None, number: int, body: bytes) -> None:
        if wait_s is not None:
            self._free_at = max(self._free_at, asyncio.get_running_loop().time() + wait_s)
            return
        spread = 0.5 + crc32(body) % 1000 / 1000
        await self._sleep(min(FIRST_WAIT_S * 2**number, MAX_WAIT_S) * spread)


def raise_if_busy(status: int, headers: Mapping[str, str], why: str) -> None:
    """Raise `TryAgainError` if the server is busy or has failed, `GaveUpError` if it also requests too long a wait."""
    if status >= 500 or status in _BUSY:
        wait_s = _retry_after_s(headers.get("Retry-After", "").strip())
        if wait_s is not None and wait_s > MAX_RETRY_AFTER_S:
            raise GaveUpError(f"{why}; it asks to wait {wait_s:g} seconds")
        raise TryAgainError(why, wait_s)


def _retry_after_s(asked: str) -> float | None:
    """Seconds of waiting that the server requests (RFC 9110, 10.2.3: a number of seconds, or a date), or None."""
    if re.fullmatch(r"\d+(\.\d+)?", asked):
        return float(asked)
    try:
        date = parsedate_to_datetime(asked)
    except (ValueError, TypeError, LookupError, OverflowError):  # not a date
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
