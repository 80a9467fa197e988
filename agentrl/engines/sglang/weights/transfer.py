"""Protocol for sending weights to SGLang servers, with the functions that all transfers share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from agentrl.engines.base import WeightStream
from agentrl.engines.sglang.client import RefusedError, ServerClient, ServerError
from agentrl.engines.sglang.replica import Replica

FLUSH_WITHIN_S = 10.0
SLOWEST_BYTES_PER_S = 20e6


class UpdateFailedError(ServerError):
    """Some replicas failed to load new weights; these replicas may now have mixed weights.

    Attributes:
        replicas: the failed replicas; all other replicas have the new weights.
    """

    def __init__(self, errors: Mapping[Replica, ServerError]) -> None:
        super().__init__("; ".join(f"sending new weights failed: {error}" for error in errors.values()))
        self.replicas = tuple(errors)


class WeightTransfer(Protocol):
    """Sends weights to servers and remembers the last weights.

    The servers must be paused or idle during a transfer: tokens sampled between two buckets would come from mixed
    weights.
    """

    async def send(
        self, replicas: Sequence[Replica], weights: WeightStream, version: int, *, keep_cache: bool = False
    ) -> None:
        """Replace the weights of all `replicas`. Tokens sampled afterwards have policy version `version`.

        Args:
            weights: named as in the model's checkpoint; missing weights keep their values.
            keep_cache: keep the KV of older weights; required for servers paused with `in_place`.

        Raises:
            ValueError: an unknown name, a wrong shape or a duplicate name; nothing was sent.
            UpdateFailedError: some of the replicas failed.
        """
        ...

    async def refresh(self, replica: Replica) -> None:
        """Send the last weights and version to a restarted replica; do nothing if no weights were sent before.

        Raises:
            UpdateFailedError: the replica failed.
        """
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return counters since the start, and measurements of the last transfer, by name; see `EngineMeter`."""
        ...

    async def close(self) -> None:
        """Free all resources in this process and on the servers. A second call does nothing."""
        ...


async def to_each(replicas: Sequence[Replica], version: int, send: Callable[[Replica], Awaitable[None]]) -> None:
    """Run `send` for all replicas in parallel, and set `version` on each replica that succeeded.

    Raises:
        UpdateFailedError: some replicas failed; raised after all replicas have answered.
    """
    failed: dict[Replica, ServerError] = {}

    async def one(replica: Replica) -> None:
        try:
            await send(replica)
            replica.version = version
        except ServerError as error:
            failed[replica] = error

    async with asyncio.TaskGroup() as group:
        for replica in replicas:
            group.create_task(one(replica))
    if failed:
        raise UpdateFailedError(failed)


@asynccontextmanager
async def weight_update(client: ServerClient, *, keep_cache: bool) -> AsyncIterator[None]:
    """Context manager for replacing a server's weights. Flushes the KV cache at the end, unless `keep_cache`.

    Requests inside the block must not ask for a flush of the cache: a flush during an update crashes a server that has
    a running request. `/flush_cache` afterwards is safe: the server refuses to flush while a request runs.
    """
    await _begin(client)
    try:
        yield
    except BaseException:
        with suppress(ServerError):  # keep the first error; a dead server has no update to end
            await client.post("/end_weight_update", timeout_s=5.0)
        raise
    await client.post("/end_weight_update")
    if not keep_cache:
        await flush(client)


async def _begin(client: ServerClient) -> None:
    try:
        await client.post("/begin_weight_update")
    except RefusedError:  # a killed trainer left an update open
        await client.post("/end_weight_update")
        await client.post("/begin_weight_update")


async def flush(client: ServerClient) -> None:
    """Drop the KV of older weights.

    The option `timeout` of `/flush_cache` is not used: with it, a paused server waits for its running requests.

    Raises:
        RefusedError: requests were running for too long.
    """
    give_up = time.monotonic() + FLUSH_WITHIN_S
    while True:
        try:
            await client.post("/flush_cache")
            return
        except RefusedError:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(0.05)


def time_for(num_bytes: int) -> float:
    """Timeout in seconds for a server to load `num_bytes` of weights."""
    return 60 + num_bytes / SLOWEST_BYTES_PER_S
