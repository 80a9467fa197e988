"""Batched callbacks between event loops of different threads: one wake-up per loop iteration."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar, cast

from agentrl.concurrency.deadlines import Alarm, wake
from agentrl.concurrency.watchdog import watchdog

Callback = Callable[[], None]
"""A callback for an event loop; must not raise."""


class Mailbox:
    """Queue of callbacks that other threads send to an event loop; they are called in order of arrival.

    Waking a loop needs a pipe write and a thread switch, which takes longer than a quick call. So a loop wakes another
    loop only once per iteration, after all ready callbacks. This has a price: a coroutine that blocks its loop delays
    the replies of other coroutines in the same iteration, so the calls that wait for these replies may exceed their
    deadlines.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.alarm = loop, Alarm(loop)
        self._callbacks: deque[Callback] = deque()
        self._called = False
        self._to_wake: list[Mailbox] = []  # mailboxes to wake at the end of this iteration

    def post(self, callback: Callback) -> None:
        """Add a callback from any thread, and wake the loop. A closed loop ignores the callback."""
        self._callbacks.append(callback)
        self._wake()

    def send(self, to: Mailbox, callback: Callback) -> None:
        """Add a callback to the mailbox `to`. Call this method only on the thread of this mailbox's loop."""
        to._callbacks.append(callback)
        if not self._to_wake:
            self.loop.call_soon(self._end_round)
        if to not in self._to_wake:
            self._to_wake.append(to)

    def _end_round(self) -> None:
        while self._to_wake:
            self._to_wake.pop()._wake()

    def _wake(self) -> None:
        # `_deliver` clears the flag before it reads the queue, so no callback is missed
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False
        for _ in range(len(self._callbacks)):  # callbacks posted meanwhile wake the loop again
            self._callbacks.popleft()()


T = TypeVar("T")


class OverdueError(Exception):
    """The call did not end by its deadline."""


class UnavailableError(Exception):
    """The call could not run, for a reason outside the call."""


class Reply(Generic[T]):
    """A result that another thread delivers to the waiting event loop, whose mailbox is `home`."""

    def __init__(self, home: Mailbox) -> None:
        self.done = False
        self.cut = False  # whether the loop that runs the call processed the cancellation; if so, it is not blocked
        self.task: asyncio.Task[None] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self.home = home
        self._slot: int | None = None
        self._waiter: asyncio.Future[None] | None = None

    def watch(self, name: str, deadline_s: float) -> None:
        """Register the call with the watchdog, which ends the run if the call never releases the interpreter lock."""
        self._slot = watchdog.enter(name, deadline_s)

    def abandoned(self, name: str) -> None:
        """Tell the watchdog that the call passed its deadline and still runs."""
        if self._slot is not None and not self.done:
            watchdog.abandoned(self._slot, name)

    def deliver(
        self, value: T | None = None, error: BaseException | None = None, *, sender: Mailbox | None = None
    ) -> None:
        """Deliver the result, from any thread. Call this method only once.

        Args:
            sender: mailbox of the current event loop; None if called outside of an event loop.
        """
        self._value, self._error, self.done = value, error, True
        if self._slot is not None:
            watchdog.leave(self._slot)
            self._slot = None
        if sender is None:
            self.home.post(self._arrive)
        else:
            sender.send(self.home, self._arrive)

    def _arrive(self) -> None:
        if self._waiter is not None:
            wake(self._waiter)

    async def wait(self, seconds: float) -> bool:
        """Wait for the result at most `seconds`; return whether it arrived."""
        if not self.done:
            self._waiter = waiter = self.home.loop.create_future()
            self.home.alarm.set(waiter, seconds)
            try:
                await waiter
            finally:
                self.home.alarm.unset(waiter)
        return self.done

    def result(self) -> T:
        """Return the value, or raise the error of the call."""
        if self._error is not None:
            raise self._error
        return cast("T", self._value)
