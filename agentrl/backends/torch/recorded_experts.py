"""Recorded experts of samples, as one tensor per micro-batch.

Axes: B samples, T columns, M tokens of a micro-batch, L layers, K experts per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agentrl.backends.base import Scores
from agentrl.backends.packing import used_tokens
from agentrl.types.sample import Sample
from agentrl.types.trajectory import smallest


def recorded(samples: Sequence[Sample], lengths: Sequence[int]) -> list[Tensor] | None:
    """Return each sample's experts, [length, L, K] int16, -1 where not recorded; None if none are recorded.

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
    """Return recorded experts, [B * T, L, K], for samples as rows of T columns; None if none are recorded."""
    rows = recorded(samples, [num_columns] * len(samples))
    return None if rows is None else torch.cat(rows)


def padded_paths(samples: Sequence[Sample], num_columns: int) -> list[Tensor]:
    """Return the indices of each sample's `used_tokens`, for samples as rows of T columns."""
    return [row * num_columns + torch.arange(len(used_tokens(sample))) for row, sample in enumerate(samples)]


def by_path(experts_MLK: Tensor, paths: Sequence[Tensor]) -> list[Tensor]:
    """Return for each path the experts of its tokens, [length, L, K], on the CPU."""
    found_MLK = smallest(experts_MLK.cpu())
    return [found_MLK[path] for path in paths]


def with_experts(
    scores: Scores, passes: Sequence[Sequence[Tensor]], packs: Sequence[Sequence[int]], num_samples: int
) -> Scores:
    """Return `scores`, with the experts that were recorded in the passes that computed these scores.

    Args:
        passes: for each pass, the experts of its samples. Empty if nothing was recorded.
        packs: the indices of the samples of each pass; see `score_passes`.
    """
    if not passes:
        return scores
    found: list[Tensor | None] = [None] * num_samples
    for indices, experts in zip(packs, passes, strict=True):
        for index, own in zip(indices, experts, strict=False):  # a pass without samples has the experts of `IDLE`
            found[index] = own
    return replace(scores, routed_experts=found)


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
    """Return copies of the samples without recorded experts; return `samples` itself if no sample has any."""
    if all(sample.routed_experts is None for sample in samples):
        return samples
    return [replace(sample, routed_experts=None) for sample in samples]
