"""SGLang as the engine: conversations over replicas, deadlines, pauses, weights, and servers that die meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from agentrl.engines.base import Completion, FinishReason, GenerateRequest, PauseMode, WeightStream
from agentrl.engines.sglang.client import Answer, ServerClient, ServerError, UnreachableError
from agentrl.engines.sglang.counting import Tally
from agentrl.engines.sglang.flights import ABORT_GRACE_S, Flight, Flights
from agentrl.engines.sglang.health import Ward
from agentrl.engines.sglang.placement import Placement
from agentrl.engines.sglang.replica import Health, Replica
from agentrl.engines.sglang.requests import NOTHING, Terms, read_completion
from agentrl.engines.sglang.transfer import UpdateFailedError, WeightTransfer

MOST_TRIES = 16
"""How often a request is sent to servers that are well and yet fail to answer it, with ever longer rests between: some
100 seconds in all, as a router looks after its workers once a minute."""

LONGEST_REST_S = 10.0


class SglangEngine:
    """Samples on SGLang servers. A conversation stays on one.

    A server that dies or hangs is started again, and what was under way there is sent anew from the same tokens.

    Made inside a running event loop, and used from it. It owns replicas, transfer and router from here on.

    Args:
        terms: what the servers can be asked for.
        router: an sglang-router that places generation; control goes to the replicas themselves.
        health_timeout_s, start_timeout_s, max_restarts: see `Ward`.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        transfer: WeightTransfer,
        terms: Terms,
        *,
        router: ServerClient | None = None,
        health_timeout_s: float = 30.0,
        start_timeout_s: float = 600.0,
        max_restarts: int = 3,
    ) -> None:
        self.replicas = replicas
        self.terms = terms
        self._transfer, self._router = transfer, router
        self._answer_s = health_timeout_s
        self._placement = Placement(replicas)
        self._flights = Flights(replicas, router)
        self._ward = Ward(
            replicas,
            transfer,
            self._flights.call_back,
            self._flights.wake,
            health_timeout_s=health_timeout_s,
            start_timeout_s=start_timeout_s,
            max_restarts=max_restarts,
            router=router,
        )
        self._tally = Tally()
        self._paused: PauseMode | None = None
        self._closed = False
        self._ward.begin()

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one completion; see `Engine.generate`.

        Raises:
            ValueError: the request can never be served.
            ServerError: no server is left, or one refused it.
        """
        self.terms.check(request)
        if self._closed:
            return NOTHING
        if not self.terms.room(request):
            return Completion((), (), (), FinishReason.LENGTH)
        flight = self._flights.begin(request)
        deadline = None
        if request.deadline_s is not None:
            deadline = asyncio.get_running_loop().call_later(request.deadline_s, self._flights.end, flight)
        try:
            return await self._completion(flight)
        finally:
            if deadline is not None:
                deadline.cancel()
            self._flights.finish(flight)

    async def load_weights(self, weights: WeightStream, version: int) -> None:
        """Send new weights to every replica in service; one that fails to take them is started again with them.

        Raises:
            ValueError: a name or shape that the model does not have; nothing was sent.
            ServerError: no replica took them.
        """
        if self._paused is not None:
            return await self._replace(weights, version, keep_cache=self._paused == "in_place")
        await self.pause("retract")  # what is sampled between two parts of the weights would be of neither
        try:
            await self._replace(weights, version, keep_cache=False)
        finally:
            await self.resume()

    async def pause(self, mode: PauseMode = "drain") -> None:
        """Stop sampling; returns when nothing is being computed. What comes meanwhile waits here, not at servers."""
        stopped, self._paused = self._stopped, self._paused if self._stopped else mode
        if not stopped and mode == "drain":
            await self._flights.landed()
        elif not stopped:
            await self._each(lambda replica: _stop(replica, mode, self._answer_s))

    async def resume(self) -> None:
        """Go on after `pause`."""
        if self._stopped:
            await self._each(lambda replica: _continue(replica, self._answer_s))
        self._paused = None
        self._flights.wake()

    async def abort(self, session: str) -> None:
        """End the session's requests with what they have."""
        for flight in self._flights:
            if flight.request.session == session:
                self._flights.end(flight)
        await self.release(session)

    async def release(self, session: str) -> None:
        """The conversation is over. A server forgets its KV when it needs the room."""
        self._placement.forget(session)
        self._tally.forget(session)

    async def close(self) -> None:
        """End all requests as `abort`, stop the servers that were started here, leave the others."""
        if self._closed:
            return
        self._closed = True
        await self._ward.close()
        if self._stopped:
            await self._each(lambda replica: _continue(replica, ABORT_GRACE_S))
        await self._flights.close()
        await self._transfer.close()
        await asyncio.gather(*(replica.leave() for replica in self.replicas))
        if self._router is not None:
            await self._router.close()

    def metrics(self) -> dict[str, float]:
        """Counters since the start, see `Tally`, and what is now."""
        return {
            **self._tally.metrics(),
            "running_requests": float(self._flights.num_sent),
            "waiting_requests": float(self._flights.num_waiting),
            "replicas_ready": float(len(self._ready)),
            "num_restarts": float(sum(replica.num_restarts for replica in self.replicas)),
            **{f"running_requests/{i}": float(replica.num_running) for i, replica in enumerate(self.replicas)},
        }

    async def _completion(self, flight: Flight) -> Completion:
        num_tries = 0
        while (replica := await self._seat(flight)) is not None:
            try:
                answer = await self._flights.send(flight, replica, partial(self._body, flight.request))
            except UnreachableError as error:
                num_tries += replica.health is not Health.OUT
                if num_tries >= MOST_TRIES:
                    raise UnreachableError(f"given up after {num_tries} tries: {error}") from error
                answer = None
                self._ward.suspect(replica, str(error))
                if num_tries > 1:
                    await self._flights.rest(flight, min(0.05 * 2**num_tries, LONGEST_REST_S))
            if answer is not None:
                return self._counted(flight.request, answer, replica)
            if not flight.ended:
                self._tally.retried()
        return NOTHING

    async def _seat(self, flight: Flight) -> Replica | None:
        """The replica it is sent to, once there is one and nothing is paused; None when it ended meanwhile."""
        while not flight.ended:
            if self._ward.failure is not None:
                raise self._ward.failure.with_traceback(None)
            replica = None if self._paused else self._placement.choose(flight.request.session)
            if replica is not None:
                return replica
            flight.wake.clear()
            await flight.wake.wait()
        return None

    def _body(self, request: GenerateRequest, rid: str) -> dict[str, object]:
        return self.terms.body(request, rid, self._placement.cache_key(request.session))

    def _counted(self, request: GenerateRequest, answer: Answer, replica: Replica) -> Completion:
        try:
            completion = read_completion(answer, request, self.terms.routed_experts)
        except ServerError as error:
            raise ServerError(f"{replica.name}: {error}") from error
        self._tally.answered(request, completion)
        return completion

    async def _replace(self, weights: WeightStream, version: int, *, keep_cache: bool) -> None:
        if keep_cache:
            self._placement.cache_kept()
        try:
            await self._send(weights, version, keep_cache=keep_cache)
        except UpdateFailedError as error:
            self._ward.condemn(error.replicas, str(error))
            if not self._ready and all(replica.process is None for replica in self.replicas):
                raise
            if all(replica.version != version for replica in await self._ward.ready()):
                raise  # none was left that took them, and what came back has others

    async def _send(self, weights: WeightStream, version: int, *, keep_cache: bool) -> None:
        while True:
            await self._ward.ready()
            async with self._ward.weights:
                if self._ready:
                    return await self._transfer.send(self._able, weights, version, keep_cache=keep_cache)

    @property
    def _stopped(self) -> bool:
        """Whether the servers themselves are paused."""
        return self._paused not in (None, "drain")

    @property
    def _ready(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.health is Health.READY]

    @property
    def _able(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.may_serve]

    async def _each(self, ask: Callable[[Replica], Awaitable[None]]) -> None:
        """Ask every replica that may serve. One that does not answer goes out of service: it would be paused where the
        others are not, or the other way round."""

        async def one(replica: Replica) -> None:
            try:
                await ask(replica)
            except UnreachableError as error:
                if replica.may_serve:  # not yet found out by others
                    self._ward.condemn([replica], str(error))

        answers = await asyncio.gather(*map(one, self._able), return_exceptions=True)
        for error in filter(None, answers):
            raise error


async def _stop(replica: Replica, mode: PauseMode, timeout_s: float) -> None:
    await replica.client.post("/pause_generation", {"mode": mode}, timeout_s)
    await replica.client.get("/server_info", timeout_s)  # by the scheduler once it has stopped: the first answer is not


async def _continue(replica: Replica, timeout_s: float) -> None:
    await replica.client.post("/continue_generation", {}, timeout_s)
