"""What transports share that send weights bucket by bucket: one copy in host memory, and the order of the calls."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from agentrl.engines.base import WeightStream
from agentrl.engines.sglang.buckets import Bucket, Shapes, buckets_of, checked
from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.transfer import to_each, weight_update


class BucketTransfer(ABC):
    """See `WeightTransfer`. Holds what was sent last in host memory, and the version before it while a new one is read.

    Args:
        shapes: of the model's checkpoint.
        dtype: of the matrices sent.
        bucket_bytes: of what travels at a time.
    """

    def __init__(self, shapes: Shapes, dtype: torch.dtype | None, bucket_bytes: int) -> None:
        self._shapes, self._dtype, self._bucket_bytes = shapes, dtype, bucket_bytes
        self._sent: tuple[list[Bucket], int] | None = None

    async def send(
        self, replicas: Sequence[Replica], weights: WeightStream, version: int, *, keep_cache: bool = False
    ) -> None:
        """See `WeightTransfer.send`."""
        named = checked(weights, self._shapes, self._dtype)
        buckets = await asyncio.to_thread(lambda: list(buckets_of(named, self._bucket_bytes)))
        self._sent = buckets, version
        await to_each(replicas, version, lambda replica: self._update(replica, buckets, version, keep_cache=keep_cache))

    async def refresh(self, replica: Replica) -> None:
        """See `WeightTransfer.refresh`."""
        await self.forget(replica)
        if self._sent:
            buckets, version = self._sent
            await to_each([replica], version, lambda one: self._update(one, buckets, version, keep_cache=False))

    async def close(self) -> None:
        """Free the copy."""
        self._sent = None

    async def _update(self, replica: Replica, buckets: Sequence[Bucket], version: int, *, keep_cache: bool) -> None:
        async with weight_update(replica.client, keep_cache=keep_cache):
            for bucket in buckets:
                # said with the last bucket, so that nothing carries a version whose weights have not all come
                said = str(version) if bucket is buckets[-1] else None
                await self.transmit(replica, bucket, said)

    @abstractmethod
    async def transmit(self, replica: Replica, bucket: Bucket, version: str | None) -> None:
        """Bring one bucket to a replica; with a `version`, it is the last one.

        Raises:
            ServerError: it did not take it.
        """

    async def forget(self, replica: Replica) -> None:  # noqa: B027  # most transports hold nothing of a replica
        """Let go of what is held for a replica: it was started again."""
