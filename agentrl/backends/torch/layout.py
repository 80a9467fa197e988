"""A micro-batch as one row of tokens without padding, in which samples of one prompt share it.

Axes: M packed tokens, N trained tokens, R rows, C columns (queries of a row), W keys of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from agentrl.backends.packing import Prompt, split_prompt
from agentrl.samples import Sample

SIMILAR = 0.7
"""Rows of a grid have at least this share of the queries of its longest: more padding, or more calls."""

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class _Row:
    """`num_own` consecutive packed tokens from `own` on; they look at `num_before` others from `before` on, too."""

    own: int
    num_own: int
    before: int = 0
    num_before: int = 0


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
    """

    token_ids: Tensor
    positions: Tensor
    predictors: Tensor
    layout: Layout


class _Packer:
    """Lays samples out one family after the other: the prompt, then what its samples have of their own."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.positions: list[IntArray] = []
        self.rows: list[_Row] = []

    def add(self, prompt: Prompt, owns: Sequence[Sequence[int]]) -> tuple[int, list[int]]:
        """Where the prompt stands, and where each sample's own tokens do."""
        start = self._put(prompt, 0)
        starts = [self._put(own, len(prompt)) for own in owns]
        some = [(at, len(own)) for at, own in zip(starts, owns, strict=True) if own]
        if len(some) == 1:  # nobody to share with: its own tokens stand right behind the prompt
            self.rows.append(_Row(start, len(prompt) + some[0][1]))
        else:
            self.rows.append(_Row(start, len(prompt)))
            self.rows += [_Row(at, length, start, len(prompt)) for at, length in some]
        return start, starts

    def _put(self, token_ids: Sequence[int], position: int) -> int:
        start = len(self.token_ids)
        self.token_ids += token_ids
        self.positions.append(np.arange(position, position + len(token_ids)))
        return start


def pack_tokens(samples: Sequence[Sample], windows: Mapping[int, int | None], device: torch.device) -> PackedTokens:
    """Put samples, each of which trains something, into one row of tokens. `windows`: see `Layout`."""
    split = [split_prompt(sample) for sample in samples]
    families: dict[Prompt, list[int]] = {}
    for index, (prompt, _) in enumerate(split):
        families.setdefault(prompt, []).append(index)
    packer, predictors = _Packer(), [np.empty(0, dtype=np.int64)] * len(samples)
    for prompt, members in families.items():
        start, starts = packer.add(prompt, [split[index][1] for index in members])
        for index, own in zip(members, starts, strict=True):
            predictors[index] = np.flatnonzero(samples[index].loss_mask) + (own - len(prompt) - 1)
            predictors[index][0] = start + len(prompt) - 1  # the first trained token is predicted by the prompt's last
    grids, cells = _grids(packer.rows, len(packer.token_ids), device)
    arrays = (packer.token_ids, np.concatenate(packer.positions), np.concatenate(predictors), cells)
    token_ids, positions, predictors_N, cells_M = (torch.as_tensor(array).to(device) for array in arrays)
    return PackedTokens(token_ids, positions, predictors_N, Layout(grids, cells_M, windows))


def _grids(rows: Sequence[_Row], num_tokens: int, device: torch.device) -> tuple[list[Grid], IntArray]:
    cells, offset, grids = np.zeros(num_tokens, dtype=np.int64), 0, []
    for chosen in _similar(rows):
        fields = [(row.own, row.num_own, row.before, row.num_before) for row in chosen]
        own, num_own, before, num_before = np.array(fields, dtype=np.int64).T[:, :, None]
        columns, places = np.arange(num_own.max()), np.arange((num_own + num_before).max())
        positions = num_before + np.minimum(columns, num_own - 1)
        queries = own + positions - num_before
        held = np.minimum(places, num_own + num_before - 1)
        keys = np.where(held < num_before, before + held, own + held - num_before)
        real = columns < num_own
        cells[queries[real]] = offset + np.flatnonzero(real)
        offset += queries.size
        arrays = (queries.ravel(), keys.ravel(), positions)
        queries_RC, keys_RW, positions_RC = (torch.from_numpy(array).to(device) for array in arrays)
        shape = (len(chosen), len(columns), len(places))
        grids.append(Grid(shape, queries_RC, keys_RW, positions_RC, causal=not chosen[0].num_before))
    return grids, cells


def _similar(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Rows in groups of similar numbers of queries and of keys; those that look at others by themselves."""

    def kind(row: _Row) -> tuple[bool, int]:
        return row.num_before > 0, (row.num_before + row.num_own).bit_length()

    groups: list[list[_Row]] = []
    for row in sorted(rows, key=lambda row: (*kind(row), -row.num_own)):
        first = groups[-1][0] if groups else row
        if groups and kind(row) == kind(first) and row.num_own >= SIMILAR * first.num_own:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups
