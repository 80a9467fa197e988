"""Deadlines of many futures with a single timer."""

from __future__ import annotations

import asyncio


class Alarm:
    """Wakes futures at their deadlines. A single timer waits for the earliest deadline.

    A timer for each future would be wasteful, because few futures reach their deadline.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(self, waiter: asyncio.Future[None], seconds: float) -> None:
        """Wake `waiter` after `seconds`."""
        self._due[waiter] = when = self._loop.time() + seconds
        if self._timer is None or when < self._timer.when():
            self._start(when)

    def unset(self, waiter: asyncio.Future[None]) -> None:
        """Remove the deadline of `waiter`."""
        self._due.pop(waiter, None)

    def _start(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        now, self._timer = self._loop.time(), None
        for waiter in [waiter for waiter, when in self._due.items() if when <= now]:
            del self._due[waiter]
            wake(waiter)
        if self._due:
            self._start(min(self._due.values()))


def wake(waiter: asyncio.Future[None]) -> None:
    """Complete `waiter`, so that the coroutine that awaits it continues."""
    if not waiter.done():
        waiter.set_result(None)
