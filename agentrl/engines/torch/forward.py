"""Forward passes of the model: packed new tokens over the KV store, or full sequences if KV cannot be reused."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.engines.torch.attention import ACTIVE, PAGED, Grid, Step
from agentrl.engines.torch.paged_kv import BLOCK_SIZE, IntArray, KVStore, num_blocks_for
from agentrl.models.attention import attention_implementation, configs_of


@dataclass(frozen=True, slots=True)
class Row:
    """Row of a step (one forward pass): tokens `start` to `end` of a sequence are new.

    `blocks` contain the KV of the sequence. `copy_to` has the blocks of identical sequences, to which the new KV is
    copied.
    """

    token_ids: Sequence[int]
    start: int
    end: int
    blocks: IntArray
    copy_to: Sequence[IntArray] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows and columns of a step. If `fixed`, every step is padded to exactly this shape (docs/design.md, 9)."""

    rows: int
    columns: int
    fixed: bool


FREE = Shape(rows=0, columns=0, fixed=False)
"""Shape without limits: as large as the rows of the step need."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a step: number of requests, and the shapes of prefill and decode."""

    max_num_seqs: int
    prefill: Shape
    decode: Shape


def limits_for(device: str, max_num_seqs: int, *, fixed: bool) -> Limits:
    """Return the limits of steps on a device. On the CPU, fixed shapes are small, because padding costs time there.

    On a GPU, shapes are larger, because launching a step costs more than its arithmetic.
    """
    if device != "cpu":
        rows, columns, decode_rows = 16, 128, 256
    elif fixed:
        rows, columns, decode_rows = 16, 16, 64
    else:
        rows, columns, decode_rows = 32, 16, 128
    decode_rows = min(max_num_seqs, decode_rows)
    return Limits(max_num_seqs, Shape(rows, columns, fixed), Shape(decode_rows, 1, fixed))


def one_by_one(limits: Limits) -> Limits:
    """Return `limits` with one row per step, for models in which the rounding of a row depends on other rows."""
    return replace(limits, prefill=replace(limits.prefill, rows=1), decode=replace(limits.decode, rows=1))


class Runner(Protocol):
    """Forward passes over rows. `kv_reuse`: whether computed KV is kept."""

    kv_reuse: bool
    store: KVStore

    def prefill(self, rows: Sequence[Row], shape: Shape) -> None:
        """Compute and store the KV of new tokens."""
        ...

    def decode(self, rows: Sequence[Row], shape: Shape, beside: Sequence[Row] = ()) -> Tensor:
        """Next-token logits [R, V] of each row; each row has one new token.

        The same forward pass also computes the KV of the rows `beside`, and stores this KV before any row reads it.
        """
        ...


class PagedRunner:
    """Runner that forwards only new tokens, packed into one sequence of M tokens; `paged_attention` separates rows."""

    kv_reuse = True

    def __init__(self, model: PreTrainedModel, windows: Mapping[int, int | None]) -> None:
        self.model = model
        self.store = KVStore()
        self.windows = windows
        self._device = model.device
        self._configs = configs_of(model)
        self._keep_last = (
            {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        )

    def prefill(self, rows: Sequence[Row], shape: Shape) -> None:
        """Compute and store the KV of new tokens. Logits are computed for one token only, if the model allows it."""
        self._forward([_lay_out(rows, shape)], **self._keep_last)

    def decode(self, rows: Sequence[Row], shape: Shape, beside: Sequence[Row] = ()) -> Tensor:
        """Next-token logits [R, V] of each row with one new token; rows `beside` share the forward pass."""
        layout = _lay_out(rows, shape)
        if not beside:
            return self._forward([layout])[: len(rows)]
        keep = {name: len(rows) for name in self._keep_last}  # the decode rows are the last tokens
        return self._forward([_lay_out(beside, FREE), layout], **keep)[-len(rows) :]

    def _forward(self, layouts: Sequence[_Layout], **options: int) -> Tensor:
        cells = np.concatenate([layout.tokens for layout in layouts], axis=1)
        ids_M, positions_M, write_M = torch.from_numpy(cells).to(self._device).unbind(0)
        grids = [grid for layout in layouts for grid in layout.grids(self._device)]
        starts = np.cumsum([0, *(layout.tokens.shape[1] for layout in layouts[:-1])])
        copies = np.concatenate(
            [layout.copies + np.array([[start], [0]]) for layout, start in zip(layouts, starts, strict=True)], axis=1
        )
        source_X, copy_X = torch.from_numpy(copies).to(self._device).unbind(0)
        ACTIVE.step = Step(self.store, write_M, grids, self.windows, source_X, copy_X)
        try:
            with attention_implementation(self._configs, PAGED):
                output = self.model(input_ids=ids_M[None], position_ids=positions_M[None], use_cache=False, **options)
        finally:
            ACTIVE.step = None
        logits: Tensor = output.logits[0]
        return logits


@dataclass(frozen=True, slots=True)
class _Layout:
    """Rows as a grid of cells.

    Attributes:
        tokens: [3, M], id, position and KV slot of each token; a fixed shape has a token in every cell.
        positions: [R, C], position of each cell's token in its sequence; 0 for padding.
        blocks: [R, N], blocks to read.
        cells: [M], the cell of each token; None if every cell is a token, in order.
        copies: [2, X], index of a token and a second slot that gets a copy of its KV.
        runs: (number of consecutive rows, number of blocks that each of them reads).
    """

    tokens: IntArray
    positions: IntArray
    blocks: IntArray
    cells: IntArray | None
    copies: IntArray
    runs: Sequence[tuple[int, int]]

    def grids(self, device: torch.device) -> Iterator[Grid]:
        """Grids on the model's device, one per entry of `runs`."""
        cells = None if self.cells is None else torch.from_numpy(self.cells).to(device)
        positions, blocks = (torch.from_numpy(array).to(device) for array in (self.positions, self.blocks))
        first = 0
        for num_rows, width in self.runs:
            rows = slice(first, first := first + num_rows)
            num_tokens = positions[rows].numel() if cells is None else len(cells)
            yield Grid(num_tokens, positions[rows], blocks[rows, :width], cells)


def _lay_out(rows: Sequence[Row], shape: Shape) -> _Layout:
    """Layout of the rows: the slot of each new token and the blocks that its row reads.

    Unused cells contain token 0 at position 0 and write to block 0. An unused cell sees one key, so that softmax never
    divides by 0.
    """
    num_rows = shape.rows if shape.fixed else len(rows)
    num_columns = shape.columns if shape.fixed else max(row.end - row.start for row in rows)
    cells = np.zeros((3, num_rows, num_columns), dtype=np.int64)
    starts_lengths = np.zeros((2, num_rows, 1), dtype=np.int64)
    runs = _runs(rows, shape, num_rows)
    blocks_RN = np.zeros((num_rows, max(width for _, width in runs)), dtype=np.int64)
    for number, row in enumerate(rows):
        length, held = row.end - row.start, num_blocks_for(row.end)
        starts_lengths[:, number, 0] = row.start, length
        cells[0, number, :length] = row.token_ids[row.start : row.end]
        blocks_RN[number, :held] = row.blocks[:held]
    columns = np.arange(num_columns)
    used_RC = columns < starts_lengths[1]
    cells[1] = (starts_lengths[0] + columns) * used_RC
    block_RC = np.take_along_axis(blocks_RN, cells[1] // BLOCK_SIZE, axis=1)
    cells[2] = (block_RC * BLOCK_SIZE + cells[1] % BLOCK_SIZE) * used_RC
    tokens = cells.reshape(3, -1)
    chosen = None if shape.fixed or used_RC.all() else np.flatnonzero(used_RC)
    lengths = starts_lengths[1, :, 0]
    first_tokens = np.arange(num_rows) * num_columns if chosen is None else np.cumsum(lengths) - lengths
    copies = _copies(rows, first_tokens)
    return _Layout(tokens if chosen is None else tokens[:, chosen], cells[1], blocks_RN, chosen, copies, runs)


def _runs(rows: Sequence[Row], shape: Shape, num_rows: int) -> list[tuple[int, int]]:
    """Return `_Layout.runs`: consecutive rows that read equally many blocks. Unused rows join the last run.

    Additional keys, even masked ones, change the order of summation (from about 200 keys on). So with fixed shapes,
    the number of blocks that a row reads depends only on its length.
    """
    if not shape.fixed:
        return [(num_rows, max(num_blocks_for(row.end) for row in rows))]
    runs = [(len(list(alike)), width) for width, alike in groupby(fixed_width(row.end) for row in rows)]
    (num_last, width) = runs[-1]
    return [*runs[:-1], (num_last + num_rows - len(rows), width)]


def fixed_width(num_tokens: int) -> int:
    """Number of blocks to read for `num_tokens`: 4, 8, 12, 16, 24, 32, 48, ... so that few different widths occur."""
    num_blocks = num_blocks_for(num_tokens)
    step = 1 << max(2, (num_blocks - 1).bit_length() - 2)
    return -(-num_blocks // step) * step


def _copies(rows: Sequence[Row], first_tokens: IntArray) -> IntArray:
    """[2, X]: index of a token, and the slot for its KV in an identical sequence."""
    copies = [
        (first + position - row.start, int(blocks[position // BLOCK_SIZE]) * BLOCK_SIZE + position % BLOCK_SIZE)
        for row, first in zip(rows, first_tokens.tolist(), strict=False)
        for blocks in row.copy_to
        for position in range(row.start, row.end)
    ]
    return np.array(copies, dtype=np.int64).reshape(-1, 2).T


class WholeRunner:
    """Runner that forwards the full sequence for every token; `kv_check` chooses it if KV cannot be reused."""

    kv_reuse = False

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.store = KVStore()

    def prefill(self, rows: Sequence[Row], shape: Shape) -> None:
        """Do nothing: no KV is kept."""

    def decode(self, rows: Sequence[Row], shape: Shape, beside: Sequence[Row] = ()) -> Tensor:
        """Next-token logits [R, V], one forward per row."""
        return torch.stack([self._last_logits(row.token_ids[: row.end]) for row in rows])

    def _last_logits(self, token_ids: Sequence[int]) -> Tensor:
        ids = torch.tensor([list(token_ids)], device=self.model.device)
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits[0, -1]
        return logits
