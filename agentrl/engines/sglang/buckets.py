"""Weights on their way to a server: checked against its model, in its number type, packed into flat buckets."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.engines.base import WeightStream

Shapes = Mapping[str, tuple[int, ...]]
"""Name -> shape of what a checkpoint of the server's model holds."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a bucket."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Several tensors in one.

    Attributes:
        data: [bytes of all] uint8, on the CPU; the entries lie in it one after the other.
    """

    entries: tuple[Entry, ...]
    data: Tensor


def checked(weights: WeightStream, shapes: Shapes, dtype: torch.dtype | None) -> WeightStream:
    """`weights` on the CPU, matrices as `dtype`, where there is one.

    Vectors travel as they are: some servers keep biases and norms in float32, and they cost next to nothing.

    Raises:
        ValueError: an unknown name, a wrong shape, or a name given twice.
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


def buckets_of(weights: WeightStream, num_bytes: int) -> Iterator[Bucket]:
    """Copies of `weights` in buckets of about `num_bytes`; no module's weights are cut apart, however large.

    A server may need them together: DeepSeek's q_a_proj and kv_a_proj become one matrix only if they come at once.
    """
    held: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in weights:
        if size >= num_bytes and _module(name) != _module(held[-1][0]):
            yield _packed(held)
            held, size = [], 0
        held.append((name, tensor))
        size += tensor.nbytes
    if held:
        yield _packed(held)


def _packed(named: list[tuple[str, Tensor]]) -> Bucket:
    named = sorted(named, key=lambda each: -each[1].itemsize)  # so that each lies at a multiple of its item's size
    entries = tuple(Entry(name, tuple(tensor.shape), tensor.dtype, tensor.nbytes) for name, tensor in named)
    return Bucket(entries, torch.cat([tensor.contiguous().flatten().view(torch.uint8) for _, tensor in named]))


def _module(name: str) -> str:
    """model.layers.0.self_attn.q_a_proj.weight -> model.layers.0.self_attn."""
    return name.rsplit(".", 2)[0]
