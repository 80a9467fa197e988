"""A value that one thread brings to the event loop of another, and the book kept of those that never came."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

T = TypeVar("T")

PATIENCE_S = 0.0002
"""How long the waiting event loop may stand still for a call whose kind was this quick the last time."""


class OverdueError(Exception):
    """The call did not end by its deadline."""


class UnavailableError(Exception):
    """The call could not run, through no fault of its own."""


class Reply(Generic[T]):
    """A value that another thread brings to the event loop that waits for it."""

    def __init__(self) -> None:
        self.done = False
        self.cut = False  # its loop has seen the cancellation, so that loop is alive
        self.task: asyncio.Task[T] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._arrived = threading.Lock()
        self._arrived.acquire()

    def bring(self, value: T | None = None, error: BaseException | None = None) -> None:
        """Deliver, from any thread, once."""
        self._value, self._error, self.done = value, error, True
        self._arrived.release()
        # `wait` sets its waiter before it looks at `done`, so one of the two always sees the other
        if (waiter := self._waiter) is not None:
            with suppress(RuntimeError):  # the waiting loop is closed
                self._loop.call_soon_threadsafe(_wake, waiter)

    async def wait(self, seconds: float, patience_s: float = 0.0) -> bool:
        """Whether it came in time. With patience the loop stands still for that long at first: no detour if quick."""
        if patience_s and self._arrived.acquire(timeout=patience_s):
            return True
        self._waiter = self._loop.create_future()
        if not self.done:
            timer = self._loop.call_later(seconds, _wake, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
        return self.done

    def result(self) -> T:
        """What was brought; raises what was raised."""
        if self._error is not None:
            raise self._error
        return cast("T", self._value)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


@dataclass(slots=True)
class Lane:
    """The calls of one kind: whether the last one was quick, and those left behind that still run."""

    name: str
    max_abandoned: int = 16
    patience_s: float = PATIENCE_S
    _abandoned: list[Reply[object]] = field(default_factory=list)

    @property
    def num_abandoned(self) -> int:
        """Calls left behind that have not ended yet."""
        self._abandoned = [reply for reply in self._abandoned if not reply.done]
        return len(self._abandoned)

    def enter(self) -> None:
        """Raises `UnavailableError` while too many earlier calls still hang."""
        if self._abandoned and self.num_abandoned >= self.max_abandoned:
            raise UnavailableError(f"{self.num_abandoned} earlier calls of {self.name} still hang")

    def abandon(self, reply: Reply[T]) -> None:
        """Leave a call behind."""
        self._abandoned.append(cast("Reply[object]", reply))

    def took(self, duration_s: float) -> None:
        """Learn from a call how long the next may be waited for in place."""
        self.patience_s = PATIENCE_S if duration_s < PATIENCE_S else 0.0
