"""Requests under way at servers: sent, cut off with what they have, or called back to be sent elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

from agentrl.engines.base import GenerateRequest
from agentrl.engines.sglang.client import Answer, ServerClient, ServerError
from agentrl.engines.sglang.replica import Health, Replica
from agentrl.engines.sglang.tasks import Tasks

ABORT_GRACE_S = 3.0
"""Seconds that a server has to give back the tokens of a request that was cut off."""

ARRIVAL_S = 0.1
"""Seconds after which a request counts as known. SGLang loses an abort that its scheduler hears of before the request,
and every later one too (`TokenizerManager.abort_request` tells it once)."""


Body = Callable[[str], Mapping[str, object]]
"""Of a request, as a function of its rid."""


@dataclass(eq=False, slots=True)
class Flight:
    """One request on its way, from the first time it is sent to its answer.

    Attributes:
        ended: its deadline passed or it was aborted: what it has is its answer.
        wake: set when there is a reason to look again, for those that wait for a replica.
        replica: where it is; under a router what it was counted for.
        post: the request to the server, while there is one.
        sent: when it went there, on the running loop's clock.
    """

    request: GenerateRequest
    ended: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    rid: str = ""
    replica: Replica | None = None
    post: asyncio.Task[Answer] | None = None
    sent: float = 0.0


class Flights:
    """All requests under way.

    Args:
        router: where requests go instead of to the replica chosen; it keeps a conversation in its place by itself.
    """

    def __init__(self, replicas: Sequence[Replica], router: ServerClient | None = None) -> None:
        self._replicas, self._router = replicas, router
        self._flights: dict[Flight, None] = {}  # in the order they came
        self._posts: set[asyncio.Task[Answer]] = set()
        self._tasks = Tasks()

    def __iter__(self) -> Iterator[Flight]:
        return iter([*self._flights])

    @property
    def num_sent(self) -> int:
        """Requests at servers."""
        return len(self._posts)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a replica."""
        return len(self._flights) - sum(flight.post is not None for flight in self._flights)

    def begin(self, request: GenerateRequest) -> Flight:
        """A new one. Whoever began it calls `finish`."""
        flight = Flight(request)
        self._flights[flight] = None
        return flight

    def finish(self, flight: Flight) -> None:
        """Nobody waits for it any more; what is still under way is aborted."""
        del self._flights[flight]
        self.end(flight)

    def end(self, flight: Flight) -> None:
        """Have it answered with what it has: at a server it is aborted, elsewhere it has nothing."""
        if flight.ended:
            return
        flight.ended = True
        flight.wake.set()
        if flight.post is not None:
            self._tasks.spawn(self._abort(flight, flight.post))

    async def rest(self, flight: Flight, seconds: float) -> None:
        """Wait so long, less where it ends meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not flight.ended:
                    flight.wake.clear()
                    await flight.wake.wait()

    async def send(
        self, flight: Flight, replica: Replica, body: Callable[[str], Mapping[str, object]]
    ) -> Answer | None:
        """Its answer from a server; None when it was called back, or gave no answer when it was cut off.

        Raises:
            ServerError: see `ServerClient.generate`.
        """
        flight.rid, flight.replica = uuid4().hex, replica  # of equal length: none is the beginning of another
        flight.sent = asyncio.get_running_loop().time()
        headers = {"x-smg-routing-key": flight.request.session} if self._router and flight.request.session else None
        client = self._router or replica.client
        replica.num_running += 1
        post = flight.post = self._tasks.spawn(client.generate(body(flight.rid), headers))
        self._posts.add(post)
        post.add_done_callback(lambda _: self._landed(post, replica))
        await asyncio.wait({post})  # not cancelled with its caller: it is aborted, and its tokens freed
        flight.post = None
        return None if post.cancelled() else post.result()

    def call_back(self, replica: Replica) -> None:
        """The replica is lost: what is under way there is sent again by those who wait for it."""
        for flight in self._flights:
            if flight.post is not None and (self._router or flight.replica is replica):
                flight.post.cancel()  # a router says not where it is: all are sent again

    def wake(self) -> None:
        """Something changed for those that wait."""
        for flight in self._flights:
            flight.wake.set()

    async def landed(self) -> None:
        """Wait until nothing is at a server."""
        while self._posts:
            await asyncio.wait(self._posts)

    async def close(self) -> None:
        """Have all answered with what they have, within the grace."""
        for flight in self:
            self.end(flight)
        await self.landed()
        await self._tasks.close()

    def _landed(self, post: asyncio.Task[Answer], replica: Replica) -> None:
        self._posts.discard(post)
        replica.num_running -= 1
        if not post.cancelled():
            post.exception()  # seen, also where nobody waits for it

    async def _abort(self, flight: Flight, post: asyncio.Task[Answer]) -> None:
        """Tell the server until it has answered: an abort that overtakes its request is lost."""
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
        with suppress(ServerError):  # it is dead or hangs, which others find out; the grace ends the wait
            await replica.client.post("/abort_request", {"rid": rid}, ABORT_GRACE_S)
