"""Running requests: sent to servers, aborted with the tokens so far, or cancelled to be sent to another server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

from agentrl.engines.base import GenerateRequest
from agentrl.engines.sglang.background import Tasks
from agentrl.engines.sglang.client import Answer, ServerClient, ServerError
from agentrl.engines.sglang.replica import Health, Replica

ABORT_GRACE_S = 3.0
"""Seconds that a server has to return the tokens of an aborted request."""

ARRIVAL_S = 0.1
"""Seconds after which the scheduler has received a request. An abort that arrives before its request is lost. Later
aborts of the request are lost too, because `TokenizerManager.abort_request` forwards only the first."""


Body = Callable[[str], Mapping[str, object]]
"""Function that returns the body of a request for a rid (request id)."""


@dataclass(eq=False, slots=True)
class Flight:
    """One running request, until its answer.

    Attributes:
        ended: the request was aborted or its deadline passed; the tokens so far are its answer.
        wake: set when the state changed, for a request that waits for a replica.
        replica: the replica the request was sent to; with a router, the replica it is counted for.
        post: the HTTP request, while it runs.
        sent: time of sending, on the running loop's clock.
    """

    request: GenerateRequest
    ended: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    rid: str = ""
    replica: Replica | None = None
    post: asyncio.Task[Answer] | None = None
    sent: float = 0.0


class Flights:
    """All running and waiting requests.

    Args:
        router: receives all requests in place of the chosen replica; it keeps each conversation on one server itself.
    """

    def __init__(self, replicas: Sequence[Replica], router: ServerClient | None = None) -> None:
        self._replicas, self._router = replicas, router
        self._flights: dict[Flight, None] = {}  # in order of arrival
        self._posts: set[asyncio.Task[Answer]] = set()
        self._tasks = Tasks()

    def __iter__(self) -> Iterator[Flight]:
        return iter([*self._flights])

    @property
    def num_sent(self) -> int:
        """Number of requests at servers."""
        return len(self._posts)

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait for a replica."""
        return len(self._flights) - sum(flight.post is not None for flight in self._flights)

    def begin(self, request: GenerateRequest) -> Flight:
        """Register a request. The caller must call `finish`."""
        flight = Flight(request)
        self._flights[flight] = None
        return flight

    def finish(self, flight: Flight) -> None:
        """Unregister a request and abort it if it still runs."""
        del self._flights[flight]
        self.end(flight)

    def end(self, flight: Flight) -> None:
        """End a request with the tokens so far: a sent request is aborted, a waiting request has none."""
        if flight.ended:
            return
        flight.ended = True
        flight.wake.set()
        if flight.post is not None:
            self._tasks.spawn(self._abort(flight, flight.post))

    async def rest(self, flight: Flight, seconds: float) -> None:
        """Wait `seconds`, or until the request ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not flight.ended:
                    flight.wake.clear()
                    await flight.wake.wait()

    async def send(
        self, flight: Flight, replica: Replica, body: Callable[[str], Mapping[str, object]]
    ) -> Answer | None:
        """Send a request and return the answer; None if it was cancelled, also after an abort without an answer.

        Raises:
            ServerError: see `ServerClient.generate`.
        """
        flight.rid, flight.replica = uuid4().hex, replica  # fixed length: no rid is a prefix of another
        flight.sent = asyncio.get_running_loop().time()
        headers = {"x-smg-routing-key": flight.request.session} if self._router and flight.request.session else None
        client = self._router or replica.client
        replica.num_running += 1
        post = flight.post = self._tasks.spawn(client.generate(body(flight.rid), headers))
        self._posts.add(post)
        post.add_done_callback(lambda _: self._landed(post, replica))
        await asyncio.wait({post})  # not cancelled with its caller: `finish` aborts it, and the server frees its tokens
        flight.post = None
        return None if post.cancelled() else post.result()

    def call_back(self, replica: Replica) -> None:
        """Cancel the requests at a lost replica; `SglangEngine` sends them again."""
        for flight in self._flights:
            if flight.post is not None and (self._router or flight.replica is replica):
                flight.post.cancel()  # with a router the server is unknown: all are sent again

    def wake(self) -> None:
        """Wake all waiting requests after a change."""
        for flight in self._flights:
            flight.wake.set()

    async def landed(self) -> None:
        """Wait until no request is at a server."""
        while self._posts:
            await asyncio.wait(self._posts)

    async def close(self) -> None:
        """End all requests with the tokens so far, within `ABORT_GRACE_S` seconds."""
        for flight in self:
            self.end(flight)
        await self.landed()
        await self._tasks.close()

    def _landed(self, post: asyncio.Task[Answer], replica: Replica) -> None:
        self._posts.discard(post)
        replica.num_running -= 1
        if not post.cancelled():
            post.exception()  # marks it as retrieved, even if nobody awaits the task

    async def _abort(self, flight: Flight, post: asyncio.Task[Answer]) -> None:
        """Repeat the abort until the server answers: an abort that arrives before its request is lost."""
        known = flight.sent + ARRIVAL_S
        try:
            async with asyncio.timeout(ABORT_GRACE_S):
                await asyncio.wait({post}, timeout=max(0.0, known - asyncio.get_running_loop().time()))
                pause_s = 0.02
                while not post.done():
                    await asyncio.gather(*(self._tell(replica, flight.rid) for replica in self._places(flight)))
                    await asyncio.wait({post}, timeout=pause_s)
                    pause_s *= 2
        except TimeoutError:
            post.cancel()

    def _places(self, flight: Flight) -> list[Replica]:
        if self._router:
            return [replica for replica in self._replicas if replica.health is Health.READY]
        return [flight.replica] if flight.replica else []

    async def _tell(self, replica: Replica, rid: str) -> None:
        with suppress(ServerError):  # a dead or hung server is handled by `Ward`; the grace ends the wait
            await replica.client.post("/abort_request", {"rid": rid}, ABORT_GRACE_S)
