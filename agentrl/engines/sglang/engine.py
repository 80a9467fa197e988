"""Engine that samples on SGLang servers: routing, deadlines, pauses, weight updates and recovery after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from agentrl.engines.base import Completion, FinishReason, GenerateRequest, PauseMode, WeightStream
from agentrl.engines.sglang.client import Answer, ServerClient, ServerError, UnreachableError
from agentrl.engines.sglang.counters import RequestCounters
from agentrl.engines.sglang.health import HealthMonitor
from agentrl.engines.sglang.in_flight import ABORT_GRACE_S, ActiveRequest, ActiveRequests
from agentrl.engines.sglang.memory import BOTH, KV_CACHE, check_memory_saver, release_memory, resume_memory
from agentrl.engines.sglang.replica import Health, Replica
from agentrl.engines.sglang.requests import NOTHING, Terms, read_completion
from agentrl.engines.sglang.routing import Placement
from agentrl.engines.sglang.weights.transfer import UpdateFailedError, WeightTransfer

MAX_TRIES = 16
"""Maximum number of times that a request is sent, if servers that seem healthy do not answer it. The growing pauses
between the attempts add up to about 100 seconds. In this time, a router that checks its workers once a minute notices a
failed worker."""

MAX_PAUSE_S = 10.0


class SglangEngine:
    """Engine that samples on SGLang servers. A conversation stays on one server.

    A server that crashes or hangs is restarted. Its running requests are sent again with the same tokens.

    Use the engine only on the event loop that created it. The engine owns replicas, transfer and router: `close`
    closes them.

    Args:
        terms: limits and features of the servers.
        router: an sglang-router that distributes generation; control calls go directly to the replicas.
        health_timeout_s, start_timeout_s, max_restarts: see `HealthMonitor`.
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
        self._active = ActiveRequests(replicas, router)
        self._monitor = HealthMonitor(
            replicas,
            transfer,
            self._active.cancel_at,
            self._active.wake,
            health_timeout_s=health_timeout_s,
            start_timeout_s=start_timeout_s,
            max_restarts=max_restarts,
            router=router,
        )
        self._counters = RequestCounters()
        self._paused: PauseMode | None = None
        self._closed = False
        self._monitor.begin()

    def check_memory_saver(self) -> None:
        """See `Colocated.check_memory_saver`.

        Raises:
            ServerError: a server cannot release its memory.
        """
        for replica in self.replicas:
            check_memory_saver(replica.client, replica.features)

    async def release_memory(self, *, weights: bool) -> None:
        """See `Colocated.release_memory`."""
        for replica in self.replicas:
            await release_memory(replica.client, BOTH if weights else KV_CACHE)

    async def resume_memory(self, *, weights: bool) -> None:
        """See `Colocated.resume_memory`."""
        for replica in self.replicas:
            await resume_memory(replica.client, BOTH if weights else KV_CACHE)

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one completion; see `Engine.generate`.

        Raises:
            ValueError: the request can never be served.
            ServerError: no server is left, no server answered the request, or a server refused it.
        """
        self.terms.check(request)
        if self._closed:
            return NOTHING
        if not self.terms.room(request):
            return Completion((), (), (), FinishReason.LENGTH)
        active = self._active.begin(request)
        deadline = None
        if request.deadline_s is not None:
            deadline = asyncio.get_running_loop().call_later(request.deadline_s, self._active.end, active)
        try:
            return await self._completion(active)
        finally:
            if deadline is not None:
                deadline.cancel()
            self._active.finish(active)

    async def load_weights(self, weights: WeightStream, version: int) -> None:
        """Send new weights to every replica in service; a replica that fails is restarted with the new weights.

        Raises:
            ValueError: a weight has a name or shape that the model does not have; nothing was sent.
            ServerError: no replica has the new weights.
        """
        if self._paused is not None:
            return await self._replace(weights, version, keep_cache=self._paused == "in_place")
        await self.pause("retract")  # otherwise tokens would be sampled with mixed weights during the transfer
        try:
            await self._replace(weights, version, keep_cache=False)
        finally:
            await self.resume()

    async def pause(self, mode: PauseMode = "drain") -> None:
        """Stop sampling; returns when nothing is being computed.

        New requests wait in this engine, not on the servers.
        """
        stopped, self._paused = self._stopped, self._paused if self._stopped else mode
        if not stopped and mode == "drain":
            await self._active.all_answered()
        elif not stopped:
            await self._each(lambda replica: _stop(replica, mode, self._answer_s))

    async def resume(self) -> None:
        """Continue sampling after `pause`."""
        if self._stopped:
            await self._each(lambda replica: _continue(replica, self._answer_s))
        self._paused = None
        self._active.wake()

    async def abort(self, session: str) -> None:
        """End the session's requests with the tokens sampled so far."""
        for active in self._active:
            if active.request.session == session:
                self._active.end(active)
        await self.release(session)

    async def release(self, session: str) -> None:
        """Forget a finished conversation. The server evicts the conversation's KV when memory runs low."""
        self._placement.forget(session)
        self._counters.forget(session)

    async def close(self) -> None:
        """End all requests with the finish reason `abort`, and stop the servers that this engine started.

        Other servers keep running.
        """
        if self._closed:
            return
        self._closed = True
        await self._monitor.close()
        if self._stopped:
            await self._each(lambda replica: _continue(replica, ABORT_GRACE_S))
        await self._active.close()
        await self._transfer.close()
        await asyncio.gather(*(replica.leave() for replica in self.replicas))
        if self._router is not None:
            await self._router.close()

    def metrics(self) -> dict[str, float]:
        """Counters since the start (see `RequestCounters`, `WeightTransfer`), and numbers of requests and replicas."""
        return {
            **self._counters.metrics(),
            **self._transfer.metrics(),
            "running_requests": float(self._active.num_sent),
            "waiting_requests": float(self._active.num_waiting),
            "replicas_ready": float(len(self._ready)),
            "num_restarts": float(sum(replica.num_restarts for replica in self.replicas)),
            **{f"running_requests/{i}": float(replica.num_running) for i, replica in enumerate(self.replicas)},
        }

    async def _completion(self, active: ActiveRequest) -> Completion:
        num_tries = 0
        while (replica := await self._seat(active)) is not None:
            try:
                answer = await self._active.send(active, replica, partial(self._body, active.request))
            except UnreachableError as error:
                num_tries += replica.health is not Health.OUT
                if num_tries >= MAX_TRIES:
                    raise UnreachableError(f"failed after {num_tries} tries: {error}") from error
                answer = None
                self._monitor.suspect(replica, str(error))
                if num_tries > 1:
                    await self._active.rest(active, min(0.05 * 2**num_tries, MAX_PAUSE_S))
            if answer is not None:
                return self._counted(active.request, answer, replica)
            if not active.ended:
                self._counters.retried()
        return NOTHING

    async def _seat(self, active: ActiveRequest) -> Replica | None:
        """Wait until a replica is in service and no pause is active. Return None if the request ends meanwhile."""
        while not active.ended:
            if self._monitor.failure is not None:
                raise self._monitor.failure.with_traceback(None)
            replica = None if self._paused else self._placement.choose(active.request.session)
            if replica is not None:
                return replica
            active.wake.clear()
            await active.wake.wait()
        return None

    def _body(self, request: GenerateRequest, rid: str) -> dict[str, object]:
        return self.terms.body(request, rid, self._placement.cache_key(request.session))

    def _counted(self, request: GenerateRequest, answer: Answer, replica: Replica) -> Completion:
        try:
            completion = read_completion(answer, request, self.terms.routed_experts)
        except ServerError as error:
            raise ServerError(f"{replica.name}: {error}") from error
        self._counters.answered(request, completion)
        return completion

    async def _replace(self, weights: WeightStream, version: int, *, keep_cache: bool) -> None:
        if keep_cache:
            self._placement.cache_kept()
        try:
            await self._send(weights, version, keep_cache=keep_cache)
        except UpdateFailedError as error:
            self._monitor.take_out(error.replicas, str(error))
            if not self._ready and all(replica.process is None for replica in self.replicas):
                raise
            if all(replica.version != version for replica in await self._monitor.ready()):
                raise  # no replica has the new weights, not even after a restart

    async def _send(self, weights: WeightStream, version: int, *, keep_cache: bool) -> None:
        while True:
            await self._monitor.ready()
            async with self._monitor.weights:
                if self._ready:
                    return await self._transfer.send(self._able, weights, version, keep_cache=keep_cache)

    @property
    def _stopped(self) -> bool:
        """Whether the servers are paused. With `drain`, only this engine pauses, not the servers."""
        return self._paused not in (None, "drain")

    @property
    def _ready(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.health is Health.READY]

    @property
    def _able(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.may_serve]

    async def _each(self, ask: Callable[[Replica], Awaitable[None]]) -> None:
        """Call `ask` for every replica that may serve.

        A replica that does not answer goes out of service, because it may have missed the start or end of a pause.
        """

        async def one(replica: Replica) -> None:
            try:
                await ask(replica)
            except UnreachableError as error:
                if replica.may_serve:  # not yet out of service
                    self._monitor.take_out([replica], str(error))

        answers = await asyncio.gather(*map(one, self._able), return_exceptions=True)
        for error in filter(None, answers):
            raise error


async def _stop(replica: Replica, mode: PauseMode, timeout_s: float) -> None:
    await replica.client.post("/pause_generation", {"mode": mode}, timeout_s)
    await replica.client.get("/server_info", timeout_s)  # the scheduler answers only after sampling has stopped


async def _continue(replica: Replica, timeout_s: float) -> None:
    await replica.client.post("/continue_generation", {}, timeout_s)
