"""A value that one thread brings to the event loop of another."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar, cast

from agentrl.offload.alarm import wake
from agentrl.offload.mailbox import Mailbox

T = TypeVar("T")


class OverdueError(Exception):
    """The call did not end by its deadline."""


class UnavailableError(Exception):
    """The call could not run, through no fault of its own."""


class Reply(Generic[T]):
    """A value that another thread brings to the event loop that waits for it, whose mailbox is `home`."""

    def __init__(self, home: Mailbox) -> None:
        self.done = False
        self.cut = False  # its loop has seen the cancellation, so that loop is alive
        self.task: asyncio.Task[None] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self.home = home
        self._waiter: asyncio.Future[None] | None = None

    def bring(
        self, value: T | None = None, error: BaseException | None = None, *, sender: Mailbox | None = None
    ) -> None:
        """Deliver, from any thread, once; from an event loop with its mailbox as `sender`."""
        self._value, self._error, self.done = value, error, True
        if sender is None:
            self.home.post(self._arrive)
        else:
            sender.send(self.home, self._arrive)

    def _arrive(self) -> None:
        if self._waiter is not None:
            wake(self._waiter)

    async def wait(self, seconds: float) -> bool:
        """Whether it came in time."""
        if not self.done:
            self._waiter = waiter = self.home.loop.create_future()
            self.home.alarm.set(waiter, seconds)
            try:
                await waiter
            finally:
                self.home.alarm.unset(waiter)
        return self.done

    def result(self) -> T:
        """What was brought; raises what was raised."""
        if self._error is not None:
            raise self._error
        return cast("T", self._value)
