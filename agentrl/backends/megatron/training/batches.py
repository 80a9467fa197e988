"""Micro-batches of megatron-core: samples packed one after another, or with shared prefixes.

Axes: N trained tokens, S tokens of this process, C context-parallel processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from agentrl.backends.megatron.architecture.layers import Bounds
from agentrl.backends.megatron.training.slices import owned_positions
from agentrl.backends.packing import used_tokens
from agentrl.backends.torch.batches import MicroBatch
from agentrl.backends.torch.gradients import IDLE
from agentrl.backends.torch.layout import Layout, PackedTokens
from agentrl.backends.torch.recorded_experts import recorded


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """The input of a model on this process.

    Attributes:
        token_ids, positions: [1, S].
        bounds: where each sample starts and ends, and which prefixes samples share.
        predicted: [N] bool, trained tokens that a position of this process predicts.
        predictors: positions among S that predict these tokens, in order.
        batch: the samples.
        padding: [S] bool, tokens that belong to no sample; true for every token of `IDLE`.
        num_tokens: number of tokens without padding, on all processes that compute the micro-batch; 0 for `IDLE`.
        places: [S], index of each token among the tokens of all processes that compute the micro-batch; -1 for padding.
        paths: for each sample, the places of its `used_tokens`.
        experts: [S, layers, top k], recorded experts, -1 where not recorded; None if no sample has recorded experts.
        ahead: `predicted` and `predictors` of each layer for multi-token prediction.
    """

    token_ids: Tensor
    positions: Tensor
    bounds: Bounds
    predicted: Tensor
    predictors: Tensor
    batch: MicroBatch
    padding: Tensor
    num_tokens: int
    places: Tensor
    paths: Sequence[Tensor]
    experts: Tensor | None = None
    ahead: Sequence[tuple[Tensor, Tensor]] = ()


def padded_lengths(batch: MicroBatch, num_slices: int, multiple: int, at_least: int = 0) -> list[int]:
    """Return the padded length of each sample of a micro-batch: its number of positions on all processes together.

    Args:
        num_slices: number of processes that divide the positions of each sample.
        multiple: the number of tokens of each process is a multiple of this.
        at_least: lower bound of the sum of the lengths.
    """
    unit = 2 * num_slices if num_slices > 1 else 1
    found = [-(-len(used_tokens(sample)) // unit) * unit for sample in batch.samples]
    while sum(found) < at_least or sum(found) % (num_slices * multiple):
        found[-1] += unit
    return found


def packed(
    batch: MicroBatch,
    lengths: Sequence[int],
    num_slices: int,
    index: int,
    device: torch.device,
    *,
    num_ahead: int = 0,
) -> PackedBatch:
    """Pack the samples of a micro-batch.

    Args:
        lengths: see `padded_lengths`.
        num_slices, index: number of processes that divide the positions of each sample, and index of this process.
        num_ahead: number of layers for multi-token prediction.
    """
    used = [torch.from_numpy(used_tokens(sample)) for sample in batch.samples]
    owned = [owned_positions(length, num_slices)[index] for length in lengths]
    paths = torch.split(torch.arange(sum(map(len, used))), [len(tokens) for tokens in used])
    places = torch.cat([_at(path, positions, -1) for path, positions in zip(paths, owned, strict=True)])
    (predicted, predictors), *ahead = (
        [each.to(device) for each in _predictors(batch, owned, distance)] for distance in range(1, num_ahead + 2)
    )
    num_tokens = _num_real(batch, sum(map(len, used)))
    known = recorded(batch.samples, [len(tokens) for tokens in used])
    return PackedBatch(
        _at(torch.cat(used), places, 0)[None].to(device),
        torch.cat(owned)[None].to(device),
        _bounds(lengths, device),
        predicted,
        predictors,
        batch,
        (places < 0).to(device) | (num_tokens == 0),
        num_tokens,
        places,
        paths,
        None if known is None else _at(torch.cat(known), places, -1).to(device),
        [(mask, where) for mask, where in ahead],
    )


def shared(batch: MicroBatch, tokens: PackedTokens, length: int, device: torch.device) -> PackedBatch:
    """Return packed tokens as the input of a model, padded to `length`; nothing reads the padding."""
    padding = length - len(tokens.token_ids)
    places, experts = torch.arange(length), tokens.routed_experts
    positions = pad(tokens.positions, [0, padding])
    layout = replace(tokens.layout, cells=pad(tokens.layout.cells, [0, padding]))
    return PackedBatch(
        pad(tokens.token_ids, [0, padding])[None],
        positions[None],
        _bounds([length], device, layout),
        torch.ones(len(tokens.predictors), dtype=torch.bool, device=device),
        tokens.predictors,
        batch,
        torch.arange(length, device=device) >= _num_real(batch, len(tokens.token_ids)),
        _num_real(batch, len(tokens.token_ids)),
        places.where(places < len(tokens.token_ids), -1),
        tokens.paths,
        None if experts is None else _at(experts, places, -1).to(device),
    )


def _num_real(batch: MicroBatch, num_tokens: int) -> int:
    return 0 if batch.samples[0] is IDLE else num_tokens


def _at(values: Tensor, places: Tensor, filler: int) -> Tensor:
    """Return the values at these places; `filler` for a place that is -1 or after the last value."""
    return torch.cat([values, torch.full_like(values[:1], filler)])[places.clamp(max=len(values))]


def _predictors(batch: MicroBatch, owned: Sequence[Tensor], distance: int) -> tuple[Tensor, Tensor]:
    """Return which trained tokens this process predicts, [N] bool, and at which of its positions.

    Args:
        distance: number of positions between a token and its predictor.
    """
    rows, columns = batch.rows.cpu(), batch.columns.cpu() - distance
    places = torch.full((len(owned), int(max(positions.max() for positions in owned)) + 1), -1)
    starts = accumulate((len(positions) for positions in owned), initial=0)
    for row, (positions, start) in enumerate(zip(owned, starts, strict=False)):
        places[row, positions] = torch.arange(start, start + len(positions))
    found = places[rows, columns.clamp(0, places.shape[1] - 1)]
    owned_N = (found >= 0) & (columns >= 0) & (columns < places.shape[1])
    return owned_N, found[owned_N]


def _bounds(lengths: Sequence[int], device: torch.device, layout: Layout | None = None) -> Bounds:
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    longest = max(lengths)
    return Bounds(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        layout=layout,
    )
