"""Collect the weights of a sharded model on rank 0 through shared memory, one bucket at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from agentrl.backends.fsdp.sharding import local_part, parts

if TYPE_CHECKING:
    from agentrl.backends.fsdp.model import ShardedModel
    from agentrl.backends.fsdp.ranks import Ranks

BUCKET_BYTES = 2**26
"""Bytes of a rank's weights that are in shared memory at a time; more if one weight is larger."""
_ALIGNED = 64
_FOLDER = Path("/dev/shm")


def collected(ranks: Ranks, number: int, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield complete copies of the named weights of the model `number`, in order; call this on rank 0 only.

    Every rank copies its part to memory that rank 0 reads: no collective operation, and never the complete model.
    """
    model: ShardedModel = ranks.held[number]
    weights = model.named_weights()
    bucket_bytes = max(BUCKET_BYTES, *(_largest_part(weights[name]) for name in names))
    segments = _segments(ranks, bucket_bytes)
    for bucket in _buckets(weights, names, bucket_bytes):
        ranks.each(_fill, [(number, bucket)] * ranks.size)
        offsets = [0] * ranks.size
        for name in bucket:
            with torch.inference_mode(False):
                complete = _complete(weights[name], segments, offsets)
            yield name, complete


def _segments(ranks: Ranks, num_bytes: int) -> list[Tensor]:
    """Return the shared memory of each rank, of at least `num_bytes`."""
    known: list[Tensor] = ranks.shared
    if not known or known[0].numel() < num_bytes:
        files = ranks.each(_open, [(num_bytes,)] * ranks.size)
        with torch.inference_mode(False):
            known[:] = [torch.from_file(file, shared=True, size=num_bytes, dtype=torch.uint8) for file in files]
        for file in files:  # the mappings stay; the memory is freed with the processes, also after a kill
            Path(file).unlink()
    return known


def _open(ranks: Ranks, num_bytes: int) -> str:
    with tempfile.NamedTemporaryFile(
        prefix="agentrl-", dir=_FOLDER if _FOLDER.is_dir() else None, delete=False
    ) as file:
        os.truncate(file.fileno(), num_bytes)
    ranks.own_memory = torch.from_file(file.name, shared=True, size=num_bytes, dtype=torch.uint8)
    return file.name


def _fill(ranks: Ranks, number: int, names: Sequence[str]) -> None:
    weights, offset = ranks.held[number].named_weights(), 0
    for name in names:
        part = local_part(weights[name]).detach().contiguous().flatten().view(torch.uint8)
        ranks.own_memory[offset : offset + len(part)].copy_(part)
        offset += _aligned(len(part))


def _complete(weight: Tensor, segments: Sequence[Tensor], offsets: list[int]) -> Tensor:
    """Join the parts of a weight; `offsets`, its place in each segment, move on to the next weight."""
    found = []
    for rank, shape in enumerate(parts(weight)):
        num_bytes = shape.numel() * weight.element_size()
        start = offsets[rank]
        found.append(segments[rank][start : start + num_bytes].view(weight.dtype).view(shape))
        offsets[rank] += _aligned(num_bytes)
    return torch.cat(found)


def _buckets(weights: dict[str, Tensor], names: Sequence[str], num_bytes: int) -> Iterator[list[str]]:
    bucket: list[str] = []
    used = 0
    for name in names:
        size = _largest_part(weights[name])
        if bucket and used + size > num_bytes:
            yield bucket
            bucket, used = [], 0
        bucket.append(name)
        used += size
    if bucket:
        yield bucket


def _largest_part(weight: Tensor) -> int:
    return _aligned(max(shape.numel() for shape in parts(weight)) * weight.element_size())


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNED) * _ALIGNED
