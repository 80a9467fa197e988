"""Collect the weights of a distributed model on rank 0, one bucket at a time.

Ranks on the node of rank 0 write their parts to memory shared with rank 0. Ranks on other nodes send their parts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from agentrl.backends.fsdp.ranks import Ranks

BUCKET_BYTES = 2**26
"""Bytes of weights that are collected at a time; more if one weight is larger."""
_ALIGNED = 64
_FOLDER = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class WeightFacts:
    """Shape and data type of a complete weight."""

    shape: torch.Size
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the complete weight."""
        return self.shape.numel() * self.dtype.itemsize


class HeldWeights(Protocol):
    """The parts of a model's weights on one rank."""

    def facts(self) -> Mapping[str, WeightFacts]:
        """Return the shape and data type of all weights, by name."""
        ...

    def places(self, name: str, complete: Tensor) -> Mapping[int, Sequence[Tensor]]:
        """Return rank -> views of `complete` that the rank's parts fill; ranks without parts have no entry."""
        ...

    def own_parts(self, name: str) -> Sequence[Tensor]:
        """Return this rank's parts of a weight, in the order of the rank's views in `places`."""
        ...


def collected(ranks: Ranks, number: int, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the complete weights `names` of the model `ranks.held[number]`; call this on rank 0 only.

    A weight is valid until the next one is requested, because its memory is reused. Only one bucket is in memory at a
    time.
    """
    facts = ranks.held[number].facts()
    bucket_bytes = max(BUCKET_BYTES, *(_size(facts[name]) for name in names))
    _share(ranks, bucket_bytes)
    for bucket in _buckets(facts, names, bucket_bytes):
        ranks.each(_fill, [(number, bucket)] * ranks.size)
        start = 0
        for name in bucket:
            with torch.inference_mode(False):
                complete = _complete(ranks.bucket, facts[name], start)
            yield name, complete
            start += _size(facts[name])


def _share(ranks: Ranks, num_bytes: int) -> None:
    """Give every rank a bucket of at least `num_bytes`; on the node of rank 0, all ranks share the same memory."""
    if ranks.bucket.numel() >= num_bytes:
        return
    with tempfile.NamedTemporaryFile(prefix="agentrl-", dir=_FOLDER if _FOLDER.is_dir() else None) as file:
        os.truncate(file.fileno(), num_bytes)
        # the mapped memory stays until the processes end, and is freed even if they are killed
        ranks.each(_open, [(file.name, num_bytes)] * ranks.size)


def _open(ranks: Ranks, file: str, num_bytes: int) -> None:
    if ranks.is_near(ranks.rank):
        ranks.bucket = torch.from_file(file, shared=True, size=num_bytes, dtype=torch.uint8)
    else:
        ranks.bucket = torch.empty(num_bytes, dtype=torch.uint8)


def _fill(ranks: Ranks, number: int, names: Sequence[str]) -> None:
    """Put the parts of all ranks into the bucket of rank 0."""
    model: HeldWeights = ranks.held[number]
    facts, start = model.facts(), 0
    for name in names:
        places = model.places(name, _complete(ranks.bucket, facts[name], start))
        if ranks.rank in places:
            for place, part in zip(places[ranks.rank], model.own_parts(name), strict=True):
                place.copy_(part.detach().reshape(place.shape))
        _exchange(ranks, places)
        start += _size(facts[name])


def _exchange(ranks: Ranks, places: Mapping[int, Sequence[Tensor]]) -> None:
    """Send the parts of ranks on other nodes to rank 0; every rank calls this."""
    for rank in (rank for rank in places if not ranks.is_near(rank)):
        for place in places[rank]:
            if ranks.rank == 0:
                receive(place, rank, ranks.control)
            elif ranks.rank == rank:
                send(place, ranks.control)


def send(part: Tensor, group: dist.ProcessGroup) -> None:
    """Send a part of a weight to rank 0."""
    dist.send(part.contiguous().flatten().view(torch.uint8), 0, group)


def receive(place: Tensor, rank: int, group: dist.ProcessGroup) -> None:
    """Receive a part of a weight from `rank` into `place`."""
    received = torch.empty(place.shape, dtype=place.dtype)
    dist.recv(received.flatten().view(torch.uint8), rank, group)
    place.copy_(received)


def _complete(bucket: Tensor, weight: WeightFacts, start: int) -> Tensor:
    return bucket[start : start + weight.num_bytes].view(weight.dtype).view(weight.shape)


def _buckets(facts: Mapping[str, WeightFacts], names: Sequence[str], num_bytes: int) -> Iterator[list[str]]:
    bucket: list[str] = []
    used = 0
    for name in names:
        size = _size(facts[name])
        if bucket and used + size > num_bytes:
            yield bucket
            bucket, used = [], 0
        bucket.append(name)
        used += size
    if bucket:
        yield bucket


def _size(weight: WeightFacts) -> int:
    """Return the bytes that a complete weight occupies in a bucket, alignment included."""
    return -(-weight.num_bytes // _ALIGNED) * _ALIGNED
