"""Health checks of replicas: dead or hung replicas go out of service and return with the weights sent last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial

from agentrl.engines.sglang.background import Tasks
from agentrl.engines.sglang.client import RefusedError, ServerClient, ServerError, UnreachableError
from agentrl.engines.sglang.features import read_features
from agentrl.engines.sglang.replica import Health, Replica
from agentrl.engines.sglang.weights.transfer import WeightTransfer

MAX_CHECK_INTERVAL_S = 10.0
MAX_ROUTER_FAILURES = 3
UNNAMED = "default"
"""Weight version that SGLang reports if the server was started without one, for example by hand."""


class HealthMonitor:
    """Checks the health of the replicas from `begin` to `close`, with one asyncio task per replica.

    A health check is a request that the server's scheduler must answer, even while sampling is paused. If only the
    HTTP front end answers, the server counts as hung. No check starts during a weight transfer, because a transfer may
    take longer than the timeout.

    Args:
        transfer: sends the last weights to a replica that returns to service.
        lost: called when a replica goes out of service; its running requests must be sent to other replicas.
        changed: called when a replica returns to service, and when `failure` is set.
        health_timeout_s: seconds without an answer after which a server counts as hung.
        start_timeout_s: timeout in seconds for a restart.
        max_restarts: maximum number of restarts of one replica; after that `failure` is set.
        router: the router, which is also checked; `MAX_ROUTER_FAILURES` checks without an answer set `failure`.

    Attributes:
        weights: lock held during a weight transfer, so that no replica returns with old weights.
        failure: reason why no replica will return to service; it ends the run.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        transfer: WeightTransfer,
        lost: Callable[[Replica], None],
        changed: Callable[[], None],
        *,
        health_timeout_s: float = 30.0,
        start_timeout_s: float = 600.0,
        max_restarts: int = 3,
        router: ServerClient | None = None,
    ) -> None:
        self.weights = asyncio.Lock()
        self.failure: Exception | None = None
        self._replicas, self._transfer = replicas, transfer
        self._lost, self._changed = lost, changed
        self._health_timeout_s, self._start_timeout_s = health_timeout_s, start_timeout_s
        self._max_restarts = max_restarts
        self._router = router
        self._check_interval_s = min(health_timeout_s / 3, MAX_CHECK_INTERVAL_S)
        self._check_now = {replica: asyncio.Event() for replica in replicas}
        self._reasons: dict[Replica, str] = {}
        self._serving = asyncio.Event()  # set if a replica is in service, or if no replica will return
        self._serving.set()
        self._tasks = Tasks()

    def begin(self) -> None:
        """Start the health checks."""
        for replica in self._replicas:
            self._tasks.spawn(self._run_or_fail(partial(self._monitor_replica, replica)))
        if self._router is not None:
            self._tasks.spawn(self._run_or_fail(partial(self._monitor_router, self._router)))

    async def close(self) -> None:
        """Stop the health checks."""
        await self._tasks.close()

    def suspect(self, replica: Replica, why: str) -> None:
        """Check a replica now, because it did not answer. Until the check is done, the replica gets no new requests."""
        if replica.health is Health.READY:
            replica.health = Health.SUSPECT
            self._request_check(replica, why)

    def take_out(self, replicas: Iterable[Replica], why: str) -> None:
        """Take replicas out of service even if they answer: their weights may be mixed."""
        for replica in replicas:
            replica.health = Health.OUT
            self._request_check(replica, why)

    async def ready(self) -> list[Replica]:
        """Wait until at least one replica is in service, and return all replicas in service.

        Raises:
            ServerError: no replica will return to service.
        """
        while True:
            if self.failure is not None:
                raise self.failure.with_traceback(None)
            if ready := [replica for replica in self._replicas if replica.health is Health.READY]:
                return ready
            self._serving.clear()
            await self._serving.wait()

    def _request_check(self, replica: Replica, why: str) -> None:
        self._reasons[replica] = why
        self._check_now[replica].set()

    async def _monitor_replica(self, replica: Replica) -> None:
        """Check a replica periodically and on request, until `close` or until the replica cannot be brought back."""
        while True:
            await _wait(self._check_now[replica], self._check_interval_s)
            self._check_now[replica].clear()
            if not await self._is_healthy(replica):
                await self._bring_back(replica)

    async def _monitor_router(self, router: ServerClient) -> None:
        """Check the router: a hung router would hold requests forever, although its servers are healthy."""
        failed = 0
        while failed < MAX_ROUTER_FAILURES:
            await asyncio.sleep(self._check_interval_s)
            try:
                await router.get("/health", self._health_timeout_s)
                failed = 0
            except UnreachableError as error:
                failed, reason = failed + 1, error
            except RefusedError as error:
                raise ServerError(f"rollout.sglang.router_url: this is not an sglang-router: {error}") from None
        for replica in self._replicas:
            self._lost(replica)
        raise ServerError(f"the router does not answer (rollout.sglang.router_url): {reason}")

    async def _run_or_fail(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run `work`; any exception sets `failure` and wakes everything that waits for a replica."""
        try:
            await work()
        except Exception as error:
            self.failure = error
            self._notify()

    async def _is_healthy(self, replica: Replica) -> bool:
        async with self.weights:  # wait for the end of a weight transfer
            pass
        if replica.health is Health.OUT:
            return False
        answered = await self._answers(replica)
        if self.weights.locked() and not answered:  # the server may be loading weights; the transfer detects failures
            self._check_now[replica].set()
            return True
        if answered and replica.health is Health.SUSPECT:
            replica.health = Health.READY
            self._notify()
        return answered

    async def _answers(self, replica: Replica) -> bool:
        if replica.process is not None and not replica.process.alive:
            self._reasons[replica] = "its process ended"
            return False
        try:
            await replica.client.get("/server_info", self._health_timeout_s)
        except ServerError as error:
            self._reasons[replica] = f"no answer within {self._health_timeout_s:g} s: {error}"
            return False
        return True

    async def _bring_back(self, replica: Replica) -> None:
        replica.health = Health.OUT
        self._lost(replica)
        print(f"out of service: SGLang server {replica.name}: {self._reasons[replica]}")
        while True:
            await self._revive(replica)
            try:
                async with self.weights:
                    await replica.client.post("/continue_generation")  # the replica may have missed the end of a pause
                    replica.features = await read_features(replica.client)
                    if replica.features.weight_version == UNNAMED:
                        await replica.name_weights("0")
                    await self._transfer.refresh(replica)
                    replica.health = Health.READY
            except ServerError as error:
                self._reasons[replica] = str(error)
                await asyncio.sleep(self._check_interval_s)
            else:
                print(f"in service again: SGLang server {replica.name}")
                return self._notify()

    async def _revive(self, replica: Replica) -> None:
        """Restart the server if this process started it; otherwise wait until it answers.

        Raises:
            ServerError: too many restarts, or no replica served for `start_timeout_s` seconds.
        """
        if replica.process is None:
            await self._wait_for_answer(replica)
            return
        restarted = False
        while not restarted:
            if replica.num_restarts >= self._max_restarts:
                raise ServerError(
                    f"the SGLang server {replica.name} was restarted {replica.num_restarts} times"
                    f" (rollout.sglang.max_restarts) and failed again: {self._reasons[replica]}"
                )
            replica.health = Health.STARTING
            replica.num_restarts += 1
            restarted = await self._restarted(replica)

    async def _wait_for_answer(self, replica: Replica) -> None:
        last_served = time.monotonic()
        while not await self._answers(replica):
            if any(other.may_serve for other in self._replicas):
                last_served = time.monotonic()
            elif time.monotonic() - last_served > self._start_timeout_s:
                raise ServerError(
                    f"no SGLang server has been in service for {self._start_timeout_s:g} s"
                    f" (rollout.sglang.start_timeout_s): {self._reasons[replica]}"
                )
            await asyncio.sleep(self._check_interval_s)

    async def _restarted(self, replica: Replica) -> bool:
        try:
            await replica.restart(self._start_timeout_s)
        except ServerError as error:
            self._reasons[replica] = str(error)
            return False
        return True

    def _notify(self) -> None:
        self._serving.set()
        self._changed()


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
