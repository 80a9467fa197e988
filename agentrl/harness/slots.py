"""Limits on how many harnesses run, and how many start, at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentrl.gateway.base import GatewaySession, RequestError, TurnAnswer, TurnRequest


class WatchedSession:
    """A `GatewaySession` that counts its requests.

    Attributes:
        num_requests: number of requests so far, including refused ones.
        refused: reason of the last refusal; "" if no request was refused.
        num_running: number of requests that wait for their answer.
        asked: event that is set at the first request.
    """

    def __init__(self, session: GatewaySession) -> None:
        self._session = session
        self.num_requests = self.num_running = 0
        self.refused = ""
        self.asked = asyncio.Event()

    async def answer(self, request: TurnRequest) -> TurnAnswer:
        """See `GatewaySession.answer`."""
        self.num_requests += 1
        self.num_running += 1
        self.asked.set()
        try:
            return await self._session.answer(request)
        except RequestError as error:
            self.refused = str(error)
            raise
        finally:
            self.num_running -= 1

    def delivered(self, turn_id: str) -> None:
        """See `GatewaySession.delivered`."""
        self._session.delivered(turn_id)

    def count_tokens(self, request: TurnRequest) -> int:
        """See `GatewaySession.count_tokens`."""
        return self._session.count_tokens(request)


class Slots:
    """Slots for harnesses. A harness counts as starting until its first request.

    Args:
        max_starting: maximum number of harnesses that start at a time. A separate limit is useful because a harness
            does most of its CPU work at its start.
    """

    def __init__(self, max_running: int, max_starting: int) -> None:
        self._running = asyncio.Semaphore(max_running)
        self._starting = asyncio.Semaphore(max_starting)

    @asynccontextmanager
    async def taken(self, session: WatchedSession) -> AsyncIterator[None]:
        """Wait for a slot, and hold it during the block."""
        async with self._running:
            await self._starting.acquire()
            started = asyncio.ensure_future(session.asked.wait())
            started.add_done_callback(lambda _: self._starting.release())
            try:
                yield
            finally:
                started.cancel()
