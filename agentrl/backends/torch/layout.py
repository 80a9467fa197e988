"""A micro-batch as one row of tokens without padding, in which samples share their common prefixes.

Axes: M packed tokens, N trained tokens, R rows, C columns (queries of a row), W keys of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from agentrl.backends.packing import IntArray, num_common, sorted_by_prefix, token_keys, used_tokens
from agentrl.backends.torch.peers import ALL_POSITIONS, SequencePeers
from agentrl.backends.torch.prefix_tree import PrefixTree
from agentrl.backends.torch.recorded_experts import recorded
from agentrl.types.sample import Sample

SIMILAR = 0.7
"""Minimum number of queries in a row of a grid, as a fraction of the queries in the grid's longest row. A lower
fraction means more padding, a higher fraction means more attention calls."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A sequence. `path`: indices of its packed tokens. The last `num_own` are queries, which attend to the path."""

    path: IntArray
    num_own: int

    @property
    def num_shared(self) -> int:
        """Number of tokens on the path before this row's queries; these tokens are queries of other rows."""
        return len(self.path) - self.num_own


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Rows of similar length, computed by one attention call. Key w of a row has position w.

    Padding repeats a row's last token, so that every query attends to a key. Outputs of padding are not read.

    Attributes:
        shape: R, C, W.
        queries, keys: [R * C] and [R * W], the packed token in each cell.
        positions: [R, C], positions of the queries.
        causal: whether the queries and keys of each row are the same tokens, so that plain causal attention suffices.
    """

    shape: tuple[int, int, int]
    queries: Tensor
    keys: Tensor
    positions: Tensor
    causal: bool
    biases: dict[tuple[int | None, torch.dtype], Tensor] = field(default_factory=dict)

    def bias(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Bias [R, 1, C, W]: 0 where a query may attend, -inf elsewhere; computed once for all layers."""
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
    """The attention pattern of packed tokens.

    Attributes:
        grids: together they have one cell for the query of each packed token, plus cells of padding.
        cells: [M], the cell of each packed token, in the concatenation of all grids.
        windows: the sliding window of each layer, None for full attention.
        peers: the processes that compute the other positions.
        tree: if set, attention uses this tree, and there are no grids.
    """

    grids: Sequence[Grid]
    cells: Tensor
    windows: Mapping[int, int | None]
    peers: SequencePeers = ALL_POSITIONS
    tree: PrefixTree | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PackedTokens:
    """Packed input of a model.

    Attributes:
        token_ids, positions: [M].
        predictors: [N], index of the packed token that predicts each trained token, sample by sample.
        paths: for each sample, the packed token that computes each of its `used_tokens`.
        routed_experts: [M, layers, top k], recorded experts, on the CPU; -1 where not recorded. None if no sample
            has recorded experts.
    """

    token_ids: Tensor
    positions: Tensor
    predictors: Tensor
    layout: Layout
    paths: Sequence[Tensor]
    routed_experts: Tensor | None = None


def pack_tokens(
    samples: Sequence[Sample], windows: Mapping[int, int | None], device: torch.device, *, as_tree: bool = False
) -> PackedTokens:
    """Pack samples, each with a trained token, into one row of tokens. For `windows` and `as_tree`, see `Layout`.

    In sorted order, each sample reuses its common prefix with the previous sample and adds only its other tokens. So
    [1 2 3] and [1 2 4] become the tokens [1 2 3 4], and the paths [0 1 2] and [0 1 3].
    """
    sequences = [token_keys(sample) for sample in samples]
    experts = recorded(samples, [len(own) for own in sequences])
    before = path = np.empty(0, dtype=np.int64)
    token_ids, positions, rows, paths = [before], [before], [], [before] * len(samples)
    num_tokens = 0
    new_experts: list[Tensor] = []
    for index in sorted_by_prefix(sequences):
        own, num_shared = sequences[index], num_common(before, sequences[index])
        num_own = len(own) - num_shared
        path = np.concatenate([path[:num_shared], np.arange(num_tokens, num_tokens + num_own)])
        if num_own:
            rows.append(_Row(path, num_own))
            token_ids.append(used_tokens(samples[index])[num_shared:])
            new_experts += [experts[index][num_shared:]] if experts else []
            positions.append(np.arange(num_shared, len(own)))
        paths[index] = path
        before, num_tokens = own, num_tokens + num_own
    grids, cells = _grids([] if as_tree else rows, num_tokens, device)
    predictors = [own[np.flatnonzero(sample.loss_mask) - 1] for own, sample in zip(paths, samples, strict=True)]
    arrays = (np.concatenate(token_ids), np.concatenate(positions), np.concatenate(predictors), cells)
    token_ids_M, positions_M, predictors_N, cells_M = (torch.as_tensor(array).to(device) for array in arrays)
    experts_MLK = torch.cat(new_experts) if experts else None
    tree = PrefixTree(_ends(rows, num_tokens).to(device), positions_M) if as_tree else None
    layout = Layout(grids, cells_M, windows, tree=tree)
    return PackedTokens(token_ids_M, positions_M, predictors_N, layout, [*map(torch.from_numpy, paths)], experts_MLK)


def own_slice(tokens: PackedTokens, peers: SequencePeers) -> tuple[PackedTokens, Tensor]:
    """Return this process's slice of the packed tokens, and [N] bool: which trained tokens this slice predicts.

    The tokens are padded to a multiple of the number of processes. No token attends to padding. The layout and the
    paths still describe all tokens.
    """
    num_tokens = len(tokens.token_ids)
    width = -(-num_tokens // peers.size)
    start, padding = peers.index * width, width * peers.size - num_tokens

    def own(values: Tensor, filler: int = 0) -> Tensor:
        return pad(values, [0, 0] * (values.ndim - 1) + [0, padding], value=filler)[start : start + width]

    experts = tokens.routed_experts
    owned_N = tokens.predictors // width == peers.index
    layout = replace(tokens.layout, cells=pad(tokens.layout.cells, [0, padding]), peers=peers)
    sliced = PackedTokens(
        own(tokens.token_ids),
        own(tokens.positions),
        tokens.predictors[owned_N] - start,
        layout,
        tokens.paths,
        None if experts is None else own(experts, -1),
    )
    return sliced, owned_N


def _ends(rows: Sequence[_Row], num_tokens: int) -> Tensor:
    """See `PrefixTree.ends`. The last row that contains a token sets the token's end.

    Samples are sorted by prefix, so the rows that contain a token are consecutive.
    """
    ends = np.zeros(num_tokens, dtype=np.int64)
    for row in rows:
        ends[row.path] = row.path[-1] + 1
    return torch.from_numpy(ends)


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
    """Group rows of similar length. Rows that attend to tokens of other rows form groups of their own."""
    groups: list[list[_Row]] = []
    for row in sorted(rows, key=lambda row: (row.num_shared > 0, -row.num_own)):
        first = groups[-1][0] if groups else None
        if first and bool(row.num_shared) == bool(first.num_shared) and row.num_own >= SIMILAR * first.num_own:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups
