"""Recorded experts of samples, as one tensor per micro-batch.

Axes: B samples, T columns, L layers, K experts per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agentrl.backends.packing import used_tokens
from agentrl.types.sample import Sample


def recorded(samples: Sequence[Sample], lengths: Sequence[int]) -> list[Tensor] | None:
    """Return each sample's experts, [length, L, K] int16, -1 where not recorded; None if no sample has any.

    Raises:
        ValueError: samples have experts of different shapes.
    """
    shapes = {sample.routed_experts.shape[1:] for sample in samples if sample.routed_experts is not None}
    if len(shapes) > 1:
        raise ValueError(f"samples have routed experts of different [layers, top k]: {sorted(map(tuple, shapes))}")
    for shape in shapes:
        return [_filled(sample.routed_experts, n, shape) for sample, n in zip(samples, lengths, strict=True)]
    return None


def padded_experts(samples: Sequence[Sample], num_columns: int) -> Tensor | None:
    """Return recorded experts, [B * T, L, K], for samples as rows of T columns; None if no sample has any."""
    rows = recorded(samples, [num_columns] * len(samples))
    return None if rows is None else torch.cat(rows)


def replayed_share(samples: Sequence[Sample]) -> float:
    """Return the share of computed tokens that have recorded experts."""
    computed = [(sample, len(used_tokens(sample))) for sample in samples if sample.num_trained_tokens]
    known = sum(min(num, len(sample.routed_experts)) for sample, num in computed if sample.routed_experts is not None)
    return known / max(1, sum(num for _, num in computed))


def _filled(experts: Tensor | None, length: int, shape: torch.Size) -> Tensor:
    filled = torch.full((length, *shape), -1, dtype=torch.int16)
    if experts is not None:
        filled[: len(experts)] = experts[:length]
    return filled


def without_experts(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples without recorded experts."""
    if all(sample.routed_experts is None for sample in samples):
        return samples
    return [replace(sample, routed_experts=None) for sample in samples]
