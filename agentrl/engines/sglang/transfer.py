"""New weights to SGLang servers: the protocol, and what every transport does alike."""

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
    """Some replicas did not take new weights; theirs may be mixed now.

    Attributes:
        replicas: which; all others hold the new weights.
    """

    def __init__(self, errors: Mapping[Replica, ServerError]) -> None:
        super().__init__("; ".join(f"new weights failed: {error}" for error in errors.values()))
        self.replicas = tuple(errors)


class WeightTransfer(Protocol):
    """Brings weights to servers, and remembers what it brought last.

    While weights are sent, the servers must be paused or idle: what they sampled between two buckets would come from
    weights that are neither the old nor the new ones.
    """

    async def send(
        self, replicas: Sequence[Replica], weights: WeightStream, version: int, *, keep_cache: bool = False
    ) -> None:
        """Replace the weights of all `replicas`; what they sample afterwards carries `version`.

        Args:
            weights: under the names of the model's checkpoint; what is left out keeps its values.
            keep_cache: leave the KV of older weights, as servers must that were paused in_place.

        Raises:
            ValueError: an unknown name, a wrong shape, a name given twice; nothing was sent.
            UpdateFailedError: some of the replicas failed.
        """
        ...

    async def refresh(self, replica: Replica) -> None:
        """Bring a replica that was started again to the weights and version sent last; nothing where none were.

        Raises:
            UpdateFailedError: it failed.
        """
        ...

    async def close(self) -> None:
        """Free what is held here and on the servers. A second call does nothing."""
        ...


async def to_each(replicas: Sequence[Replica], version: int, send: Callable[[Replica], Awaitable[None]]) -> None:
    """`send` to all replicas at once, and note the version of those that took it.

    Raises:
        UpdateFailedError: once all have answered, if some failed.
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
    """A server's weights may be replaced inside. Its cache is emptied at the end, unless `keep_cache`.

    Updates themselves must leave the cache alone: one that finds a request it cannot be flushed under kills the server,
    while `/flush_cache` refuses.
    """
    await _begin(client)
    try:
        yield
    except BaseException:
        with suppress(ServerError):  # the first error tells more, and a dead server has no update to end
            await client.post("/end_weight_update", timeout_s=5.0)
        raise
    await client.post("/end_weight_update")
    if not keep_cache:
        await flush(client)


async def _begin(client: ServerClient) -> None:
    try:
        await client.post("/begin_weight_update")
    except RefusedError:  # a trainer that was killed left one open
        await client.post("/end_weight_update")
        await client.post("/begin_weight_update")


async def flush(client: ServerClient) -> None:
    """Drop the KV of older weights.

    Its own `timeout` is of no use: with it a paused server waits for the requests it holds.

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
    """Seconds after which a server that was sent so much counts as hung."""
    return 60 + num_bytes / SLOWEST_BYTES_PER_S
