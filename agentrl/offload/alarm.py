"""Deadlines of many waits, kept by one timer."""

from __future__ import annotations

import asyncio


class Alarm:
    """Wakes futures at their deadlines. Hardly a call lives to see its own, so one timer, for the earliest, does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(self, waiter: asyncio.Future[None], seconds: float) -> None:
        """Wake `waiter` in `seconds`."""
        self._due[waiter] = when = self._loop.time() + seconds
        if self._timer is None or when < self._timer.when():
            self._start(when)

    def unset(self, waiter: asyncio.Future[None]) -> None:
        """Forget `waiter`."""
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
    """Let whoever awaits `waiter` go on."""
    if not waiter.done():
        waiter.set_result(None)
