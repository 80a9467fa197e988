"""Running requests: send them, abort them and keep the tokens so far, or cancel them to use another server."""

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
"""Assumed seconds until a sent request reaches the scheduler. No abort is sent earlier, because an abort that arrives
before its request is lost. Later aborts of this request are then lost too, because `TokenizerManager.abort_request`
forwards only the first abort of a request."""


Body = Callable[[str], Mapping[str, object]]
"""Function that returns the body of a request for a rid (request id)."""


@dataclass(eq=False, slots=True)
class ActiveRequest:
    """One running request, until its answer.

    Attributes:
        ended: whether the request was aborted or its deadline passed. Its answer is then the tokens sampled so far.
        wake: event for a request that waits for a replica; it is set when the state of the engine changes.
        replica: the replica that received the request. With a router, the receiver is unknown: `replica` is only the
            replica whose `num_running` counts the request.
        post: asyncio task of the HTTP request, while it runs.
        sent: time of sending, on the running loop's clock.
    """

    request: GenerateRequest
    ended: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    rid: str = ""
    replica: Replica | None = None
    post: asyncio.Task[Answer] | None = None
    sent: float = 0.0


class ActiveRequests:
    """All running and waiting requests.

    Args:
        router: receives all requests in place of the chosen replica; the router keeps each
            conversation on one server.
    """

    def __init__(self, replicas: Sequence[Replica], router: ServerClient | None = None) -> None:
        self._replicas, self._router = replicas, router
        self._active: dict[ActiveRequest, None] = {}  # in order of arrival
        self._posts: set[asyncio.Task[Answer]] = set()
        self._tasks = Tasks()

    def __iter__(self) -> Iterator[ActiveRequest]:
        return iter([*self._active])

    @property
    def num_sent(self) -> int:
        """Number of requests at servers."""
        return len(self._posts)

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait for a replica."""
        return len(self._active) - sum(active.post is not None for active in self._active)

    def begin(self, request: GenerateRequest) -> ActiveRequest:
        """Register a request. The caller must call `finish`."""
        active = ActiveRequest(request)
        self._active[active] = None
        return active

    def finish(self, active: ActiveRequest) -> None:
        """Unregister a request and abort it if it still runs."""
        del self._active[active]
        self.end(active)

    def end(self, active: ActiveRequest) -> None:
        """End a request with the tokens so far: a sent request is aborted, a waiting request returns no tokens."""
        if active.ended:
            return
        active.ended = True
        active.wake.set()
        if active.post is not None:
            self._tasks.spawn(self._abort(active, active.post))

    async def rest(self, active: ActiveRequest, seconds: float) -> None:
        """Wait `seconds`, or until the request ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not active.ended:
                    active.wake.clear()
                    await active.wake.wait()

    async def send(
        self, active: ActiveRequest, replica: Replica, body: Callable[[str], Mapping[str, object]]
    ) -> Answer | None:
        """Send a request and return the answer; None if the request was cancelled, or aborted without an answer.

        Raises:
            ServerError: see `ServerClient.generate`.
        """
        active.rid, active.replica = uuid4().hex, replica  # fixed length: no rid is a prefix of another
        active.sent = asyncio.get_running_loop().time()
        headers = {"x-smg-routing-key": active.request.session} if self._router and active.request.session else None
        client = self._router or replica.client
        replica.num_running += 1
        post = active.post = self._tasks.spawn(client.generate(body(active.rid), headers))
        self._posts.add(post)
        post.add_done_callback(lambda _: self._on_response(post, replica))
        await asyncio.wait({post})  # `post` continues if the caller is cancelled; `finish` then aborts it
        active.post = None
        return None if post.cancelled() else post.result()

    def cancel_at(self, replica: Replica) -> None:
        """Cancel the requests at a lost replica; `SglangEngine` sends them again."""
        for active in self._active:
            if active.post is not None and (self._router or active.replica is replica):
                active.post.cancel()  # with a router the server is unknown: cancel all requests

    def wake(self) -> None:
        """Wake all waiting requests after the state of the engine changed."""
        for active in self._active:
            active.wake.set()

    async def all_answered(self) -> None:
        """Wait until no request is at a server."""
        while self._posts:
            await asyncio.wait(self._posts)

    async def close(self) -> None:
        """End all requests with the tokens so far, within `ABORT_GRACE_S` seconds."""
        for active in self:
            self.end(active)
        await self.all_answered()
        await self._tasks.close()

    def _on_response(self, post: asyncio.Task[Answer], replica: Replica) -> None:
        self._posts.discard(post)
        replica.num_running -= 1
        if not post.cancelled():
            post.exception()  # marks the exception as retrieved: asyncio would report it if nobody awaits the task

    async def _abort(self, active: ActiveRequest, post: asyncio.Task[Answer]) -> None:
        """Abort a request. Repeat the abort until the request is answered: an abort may be lost (see `ARRIVAL_S`)."""
        known = active.sent + ARRIVAL_S
        try:
            async with asyncio.timeout(ABORT_GRACE_S):
                await asyncio.wait({post}, timeout=max(0.0, known - asyncio.get_running_loop().time()))
                pause_s = 0.02
                while not post.done():
                    await asyncio.gather(*(self._abort_on(replica, active.rid) for replica in self._servers_of(active)))
                    await asyncio.wait({post}, timeout=pause_s)
                    pause_s *= 2
        except TimeoutError:
            post.cancel()

    def _servers_of(self, active: ActiveRequest) -> list[Replica]:
        if self._router:
            return [replica for replica in self._replicas if replica.health is Health.READY]
        return [active.replica] if active.replica else []

    async def _abort_on(self, replica: Replica, rid: str) -> None:
        with suppress(ServerError):  # `HealthMonitor` handles dead and hung servers
            await replica.client.post("/abort_request", {"rid": rid}, ABORT_GRACE_S)
