"""Weights for a server: checked against its model, converted to its dtype, and packed into flat buckets."""

from __future__ import annotations

import asyncio
import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.engines.base import WeightStream
from agentrl.engines.sglang.client import ServerError
from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.weights.transfer import UpdateFailedError, to_each, weight_update

Shapes = Mapping[str, tuple[int, ...]]
"""Name -> shape of each weight in a checkpoint of the server's model."""
Allocate = Callable[[int], Tensor]
"""Function from a number of bytes to a tensor of that size."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a bucket."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Several tensors packed into one.

    Attributes:
        data: [total bytes] uint8, on the CPU; the entries follow each other without gaps.
    """

    entries: tuple[Entry, ...]
    data: Tensor


def checked(weights: WeightStream, shapes: Shapes, dtype: torch.dtype | None) -> WeightStream:
    """Check `weights`, move them to the CPU, and convert matrices to `dtype` unless it is None.

    Vectors keep their dtype: some servers store biases and norms in float32, and vectors are small.

    Raises:
        ValueError: an unknown name, a wrong shape, or a duplicate name.
    """
    given: set[str] = set()
    for name, tensor in weights:
        if name not in shapes:
            nearest = difflib.get_close_matches(name, shapes, n=1, cutoff=0)
            raise ValueError(f"the server's model has no weight '{name}': did you mean '{''.join(nearest)}'?")
        if tuple(tensor.shape) != shapes[name]:
            raise ValueError(f"weight '{name}' has shape {tuple(tensor.shape)}, expected {shapes[name]}")
        if name in given:
            raise ValueError(f"weight '{name}' is given twice")
        given.add(name)
        cast = dtype is not None and tensor.is_floating_point() and tensor.ndim > 1
        yield name, tensor.detach().to("cpu", dtype if cast else tensor.dtype)


def in_own_memory(num_bytes: int) -> Tensor:
    """Return `num_bytes` uninitialised bytes in private memory, which is not shared with servers."""
    return torch.empty(num_bytes, dtype=torch.uint8)


class ReusedMemory:
    """Memory for buckets. The next weights reuse the memory, because their buckets have the same sizes.

    Allocating new memory would be slow, because the system clears each page.
    """

    def __init__(self, allocate: Allocate = in_own_memory) -> None:
        self._allocate = allocate
        self._used: list[Tensor] = []
        self._free: list[Tensor] = []

    def __call__(self, num_bytes: int) -> Tensor:
        """Return `num_bytes` uninitialised bytes."""
        same_size = next((index for index, data in enumerate(self._free) if data.nbytes == num_bytes), None)
        data = self._allocate(num_bytes) if same_size is None else self._free.pop(same_size)
        self._used.append(data)
        return data

    def reuse(self) -> None:
        """Allow all memory to be overwritten. Memory that was unused since the last call is released."""
        self._free, self._used = self._used, []


def buckets_of(weights: WeightStream, num_bytes: int, allocate: Allocate = in_own_memory) -> Iterator[Bucket]:
    """Yield copies of `weights` in buckets of about `num_bytes`. A module's weights are never split over buckets.

    A server may need a module's weights together. For example, SGLang fuses DeepSeek's q_a_proj and kv_a_proj only if
    they arrive in one bucket.

    Args:
        allocate: function that returns memory of a given number of bytes for a bucket.
    """
    held: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in weights:
        if size >= num_bytes and _module(name) != _module(held[-1][0]):
            yield _packed(held, allocate)
            held, size = [], 0
        held.append((name, tensor))
        size += tensor.nbytes
    if held:
        yield _packed(held, allocate)


def _packed(named: list[tuple[str, Tensor]], allocate: Allocate) -> Bucket:
    named = sorted(named, key=lambda each: -each[1].itemsize)  # large elements first, so that every tensor is aligned
    entries = tuple(Entry(name, tuple(tensor.shape), tensor.dtype, tensor.nbytes) for name, tensor in named)
    data = allocate(sum(entry.num_bytes for entry in entries))
    return Bucket(entries, torch.cat([_bytes(tensor) for _, tensor in named], out=data))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def _module(name: str) -> str:
    """model.layers.0.self_attn.q_a_proj.weight -> model.layers.0.self_attn."""
    return name.rsplit(".", 2)[0]


class BucketTransfer(ABC):
    """Base class of weight transfers that send buckets; see `WeightTransfer`.

    Keeps the last weights in host memory. Without `memory`, also keeps the previous weights while new weights are read.

    Args:
        shapes: shapes of the weights in the model's checkpoint.
        dtype: dtype of the sent matrices; None keeps their dtype.
        bucket_bytes: approximate size of a bucket.
        memory: memory for the buckets; new weights overwrite the previous weights. None: each bucket gets new memory.
    """

    def __init__(
        self, shapes: Shapes, dtype: torch.dtype | None, bucket_bytes: int, memory: ReusedMemory | None = None
    ) -> None:
        self._shapes, self._dtype, self._bucket_bytes, self._memory = shapes, dtype, bucket_bytes, memory
        self._sent: tuple[list[Bucket], int] | None = None
        self._overwritten = False

    async def send(
        self, replicas: Sequence[Replica], weights: WeightStream, version: int, *, keep_cache: bool = False
    ) -> None:
        """See `WeightTransfer.send`."""
        buckets = await asyncio.to_thread(self._pack, checked(weights, self._shapes, self._dtype))
        await self.prepare(buckets)
        self._sent, self._overwritten = (buckets, version), False
        await to_each(replicas, version, lambda replica: self._update(replica, buckets, version, keep_cache=keep_cache))

    async def refresh(self, replica: Replica) -> None:
        """See `WeightTransfer.refresh`."""
        await self.forget(replica)
        if self._overwritten:
            error = ServerError("the last weights were overwritten by new weights that could not be read completely")
            raise UpdateFailedError({replica: error})
        if self._sent:
            buckets, version = self._sent
            await to_each([replica], version, lambda one: self._update(one, buckets, version, keep_cache=False))

    async def close(self) -> None:
        """Free the copy of the weights."""
        self._sent = self._memory = None

    def _pack(self, named: WeightStream) -> list[Bucket]:
        if self._memory is None:
            return list(buckets_of(named, self._bucket_bytes))
        self._overwritten = self._overwritten or self._sent is not None
        self._sent = None
        self._memory.reuse()
        return list(buckets_of(named, self._bucket_bytes, self._memory))

    async def _update(self, replica: Replica, buckets: Sequence[Bucket], version: int, *, keep_cache: bool) -> None:
        async with weight_update(replica.client, keep_cache=keep_cache):
            await self.transmit_all(replica, buckets, version)

    async def prepare(self, buckets: Sequence[Bucket]) -> None:  # noqa: B027  # most transports send buckets as they are
        """Do work before the new buckets are sent; for example, compare them with the previous buckets."""

    async def transmit_all(self, replica: Replica, buckets: Sequence[Bucket], version: int) -> None:
        """Send all buckets to a replica.

        Raises:
            ServerError: the replica did not accept the buckets.
        """
        for bucket in buckets:
            # only the last bucket sets the version: before it, the weights of this version are incomplete
            named_version = str(version) if bucket is buckets[-1] else None
            await self.transmit(replica, bucket, named_version)

    @abstractmethod
    async def transmit(self, replica: Replica, bucket: Bucket, version: str | None) -> None:
        """Send one bucket to a replica; only the last bucket has a `version`.

        Raises:
            ServerError: the replica did not accept the bucket.
        """

    def metrics(self) -> Mapping[str, float]:
        """See `WeightTransfer.metrics`."""
        return {}

    async def forget(self, replica: Replica) -> None:  # noqa: B027  # most transports have no state per replica
        """Drop the state of a replica after its restart."""
