"""Collect the weights of a sharded model on rank 0, one bucket at a time.

Ranks on the node of rank 0 write their parts to memory that they share with it; ranks on other nodes send theirs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.backends.fsdp.sharding import local_part, parts

if TYPE_CHECKING:
    from agentrl.backends.fsdp.model import ShardedModel
    from agentrl.backends.fsdp.ranks import Ranks

BUCKET_BYTES = 2**26
"""Bytes of weights that are collected at a time; more if one weight is larger."""
_ALIGNED = 64
_FOLDER = Path("/dev/shm")


def collected(ranks: Ranks, number: int, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the complete named weights of the model `number`, in order; call this on rank 0 only.

    A weight is valid until the next is asked for: its memory is used again. The complete model is never in memory.
    """
    model: ShardedModel = ranks.held[number]
    weights = model.named_weights()
    bucket_bytes = max(BUCKET_BYTES, *(_size(weights[name]) for name in names))
    _share(ranks, bucket_bytes)
    for bucket in _buckets(weights, names, bucket_bytes):
        ranks.each(_fill, [(number, bucket)] * ranks.size)
        start = 0
        for name in bucket:
            with torch.inference_mode(False):
                complete = _complete(ranks.bucket, weights[name], start)
            yield name, complete
            start += _size(weights[name])


def _share(ranks: Ranks, num_bytes: int) -> None:
    """Let every rank have a bucket of at least `num_bytes`: the same memory on the node of rank 0."""
    if ranks.bucket.numel() >= num_bytes:
        return
    with tempfile.NamedTemporaryFile(prefix="agentrl-", dir=_FOLDER if _FOLDER.is_dir() else None) as file:
        os.truncate(file.fileno(), num_bytes)
        # the mappings stay; the memory is freed with the processes, also after a kill
        ranks.each(_open, [(file.name, num_bytes)] * ranks.size)


def _open(ranks: Ranks, file: str, num_bytes: int) -> None:
    if ranks.is_near(ranks.rank):
        ranks.bucket = torch.from_file(file, shared=True, size=num_bytes, dtype=torch.uint8)
    else:
        ranks.bucket = torch.empty(num_bytes, dtype=torch.uint8)


def _fill(ranks: Ranks, number: int, names: Sequence[str]) -> None:
    """Put the parts of all ranks into the bucket of rank 0."""
    weights, start = ranks.held[number].named_weights(), 0
    for name in names:
        places = _places(ranks.bucket, weights[name], start)
        if ranks.rank in places:
            places[ranks.rank].copy_(local_part(weights[name]).detach())
        _exchange(ranks, places)
        start += _size(weights[name])


def _exchange(ranks: Ranks, places: dict[int, Tensor]) -> None:
    """Send the part of this rank to rank 0, if it is on another node; rank 0 receives these parts."""
    far = {rank: place.view(torch.uint8) for rank, place in places.items() if not ranks.is_near(rank)}
    if ranks.rank == 0:
        for rank, place in far.items():
            dist.recv(place, rank, ranks.control)
    elif ranks.rank in far:
        dist.send(far[ranks.rank], 0, ranks.control)


def _complete(bucket: Tensor, weight: Tensor, start: int) -> Tensor:
    num_bytes = weight.shape.numel() * weight.element_size()
    return bucket[start : start + num_bytes].view(weight.dtype).view(weight.shape)


def _places(bucket: Tensor, weight: Tensor, start: int) -> dict[int, Tensor]:
    """Return the place of each rank's rows in the complete weight; ranks without rows have none."""
    complete = _complete(bucket, weight, start)
    shapes = [*parts(weight)]
    if len(shapes) == 1:
        return {0: complete}
    rows = torch.split(complete, [shape[0] for shape in shapes])
    return {rank: place for rank, place in enumerate(rows) if place.numel()}


def _buckets(weights: dict[str, Tensor], names: Sequence[str], num_bytes: int) -> Iterator[list[str]]:
    bucket: list[str] = []
    used = 0
    for name in names:
        size = _size(weights[name])
        if bucket and used + size > num_bytes:
            yield bucket
            bucket, used = [], 0
        bucket.append(name)
        used += size
    if bucket:
        yield bucket


def _size(weight: Tensor) -> int:
    """Return the bytes of a complete weight in a bucket."""
    return -(-weight.shape.numel() * weight.element_size() // _ALIGNED) * _ALIGNED
