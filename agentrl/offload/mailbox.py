"""Letters between event loops of different threads: whatever a round of one loop has for another wakes it once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from agentrl.offload.alarm import Alarm

Letter = Callable[[], None]
"""What a loop is to call; must not raise."""


class Mailbox:
    """What other threads want done on an event loop, in the order it came.

    To wake a loop is a write to a pipe and a change of threads, which takes longer than a quick call. So what one loop
    has for another is told at the end of its round, when all that is ready has run. (A coroutine that blocks its loop
    thereby holds up what others of the same round have answered; the deadline of whoever waits finds it.)
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.alarm = loop, Alarm(loop)
        self._letters: deque[Letter] = deque()
        self._called = False
        self._to_wake: list[Mailbox] = []  # others, at the end of this loop's round

    def post(self, letter: Letter) -> None:
        """Put in a letter, from any thread, and wake the loop. Where it is closed, nothing happens."""
        self._letters.append(letter)
        self._wake()

    def send(self, to: Mailbox, letter: Letter) -> None:
        """Put a letter into another's box; only from this loop's own thread."""
        to._letters.append(letter)
        if not self._to_wake:
            self.loop.call_soon(self._end_round)
        if to not in self._to_wake:
            self._to_wake.append(to)

    def _end_round(self) -> None:
        while self._to_wake:
            self._to_wake.pop()._wake()

    def _wake(self) -> None:
        # `_deliver` clears the flag before it looks: a letter that finds it set is always still seen
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # closed
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False
        for _ in range(len(self._letters)):  # whatever comes from here on wakes the loop again
            self._letters.popleft()()
