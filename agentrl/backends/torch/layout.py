"""A micro-batch as one row of tokens without padding, in which samples share what they begin with alike.

Axes: M packed tokens, N trained tokens, R rows, C columns (queries of a row), W keys of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from agentrl.backends.packing import IntArray, beginnings_first, computed_alike, num_common, used_tokens
from agentrl.backends.torch.recorded_experts import recorded
from agentrl.samples import Sample

SIMILAR = 0.7
"""Rows of a grid have at least this share of the queries of its longest: more padding, or more calls."""


@dataclass(frozen=True, slots=True)
class _Row:
    """`path` is a sequence, as packed tokens in order; its last `num_own` look at all up to themselves."""

    path: IntArray
    num_own: int

    @property
    def num_shared(self) -> int:
        """How many tokens at its beginning are another row's."""
        return len(self.path) - self.num_own


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Rows of similar length whose attention is one call. Key w of a row stands at its position w.

    Padding repeats a row's last token, so that every query has a key to look at; nobody reads what it gives.

    Attributes:
        shape: R, C, W.
        queries, keys: [R * C] and [R * W], the packed token in each cell.
        positions: [R, C], of the queries.
        causal: whether the queries are the keys.
    """

    shape: tuple[int, int, int]
    queries: Tensor
    keys: Tensor
    positions: Tensor
    causal: bool
    biases: dict[tuple[int | None, torch.dtype], Tensor] = field(default_factory=dict)

    def bias(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """[R, 1, C, W], 0 where a query may look and -inf elsewhere; made once for all layers."""
        if (window, dtype) not in self.biases:
            keys_W = torch.arange(self.shape[2], device=self.positions.device)
            queries_RC1 = self.positions[:, :, None]
            hidden_RCW = keys_W > queries_RC1
            if window is not None:
                hidden_RCW |= keys_W <= queries_RC1 - window
            bias_RCW = torch.zeros(hidden_RCW.shape, dtype=dtype, device=keys_W.device)
            self.biases[window, dtype] = bias_RCW.masked_fill_(hidden_RCW, -torch.inf)[:, None]
        return self.biases[window, dtype]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Which packed tokens see which.

    Attributes:
        grids: whose cells, in order, hold every packed token's query once, and padding.
        cells: [M], the cell of each packed token.
        windows: the sliding window of each layer, None for full attention.
    """

    grids: Sequence[Grid]
    cells: Tensor
    windows: Mapping[int, int | None]


@dataclass(frozen=True, slots=True, eq=False)
class PackedTokens:
    """What a model runs on.

    Attributes:
        token_ids, positions: [M].
        predictors: [N], the packed token that predicts each trained one, sample by sample.
        routed_experts: [M, layers, top k] those recorded for each, on the CPU, -1 where none; None where none at all.
    """

    token_ids: Tensor
    positions: Tensor
    predictors: Tensor
    layout: Layout
    routed_experts: Tensor | None = None


def pack_tokens(samples: Sequence[Sample], windows: Mapping[int, int | None], device: torch.device) -> PackedTokens:
    """Put samples, each of which trains something, into one row of tokens. `windows`: see `Layout`.

    Each sample takes over what it begins with like the one before it, and adds the rest: [1 2 3] and [1 2 4] become
    the tokens [1 2 3 4], and the paths [0 1 2] and [0 1 3].
    """
    sequences = [computed_alike(sample) for sample in samples]
    experts = recorded(samples, [len(own) for own in sequences])
    before = path = np.empty(0, dtype=np.int64)
    token_ids, positions, rows, predictors = [before], [before], [], [before] * len(samples)
    num_tokens = 0
    new_experts: list[Tensor] = []
    for index in beginnings_first(sequences):
        own, num_shared = sequences[index], num_common(before, sequences[index])
        num_own = len(own) - num_shared
        path = np.concatenate([path[:num_shared], np.arange(num_tokens, num_tokens + num_own)])
        if num_own:
            rows.append(_Row(path, num_own))
            token_ids.append(used_tokens(samples[index])[num_shared:])
            new_experts += [experts[index][num_shared:]] if experts else []
            positions.append(np.arange(num_shared, len(own)))
        predictors[index] = path[np.flatnonzero(samples[index].loss_mask) - 1]
        before, num_tokens = own, num_tokens + num_own
    grids, cells = _grids(rows, num_tokens, device)
    arrays = (np.concatenate(token_ids), np.concatenate(positions), np.concatenate(predictors), cells)
    token_ids_M, positions_M, predictors_N, cells_M = (torch.as_tensor(array).to(device) for array in arrays)
    experts_MLK = torch.cat(new_experts) if experts else None
    return PackedTokens(token_ids_M, positions_M, predictors_N, Layout(grids, cells_M, windows), experts_MLK)


def _grids(rows: Sequence[_Row], num_tokens: int, device: torch.device) -> tuple[list[Grid], IntArray]:
    cells, offset, grids = np.zeros(num_tokens, dtype=np.int64), 0, []
    for chosen in _similar(rows):
        lengths, num_own = np.array([(len(row.path), row.num_own) for row in chosen]).T[:, :, None]
        keys = np.stack([np.resize(row.path, lengths.max()) for row in chosen])
        keys = np.where(np.arange(keys.shape[1]) < lengths, keys, np.take_along_axis(keys, lengths - 1, axis=1))
        columns = np.arange(num_own.max())
        positions = lengths - num_own + np.minimum(columns, num_own - 1)
        queries = np.take_along_axis(keys, positions, axis=1)
        real = columns < num_own
        cells[queries[real]] = offset + np.flatnonzero(real)
        offset += queries.size
        own, seen, places = (torch.from_numpy(array).to(device) for array in (queries.ravel(), keys.ravel(), positions))
        shape = (*queries.shape, keys.shape[1])
        grids.append(Grid(shape, own, seen, places, causal=not chosen[0].num_shared))
    return grids, cells


def _similar(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Rows in groups of similar length; those that look at others' tokens stand in groups of their own."""
    groups: list[list[_Row]] = []
    for row in sorted(rows, key=lambda row: (row.num_shared > 0, -row.num_own)):
        first = groups[-1][0] if groups else None
        if first and bool(row.num_shared) == bool(first.num_shared) and row.num_own >= SIMILAR * first.num_own:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups
