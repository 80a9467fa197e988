"""Attention over the engine's KV store, registered through the attention interface of transformers.

Axes: M packed tokens of a step, R rows, C columns (new tokens per row), W keys per row, H query heads, K key-value
heads, G = H / K query heads that share a key, D head size.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentrl.engines.torch.paged_kv import KVStore
from agentrl.models.attention import UnfaithfulError, check_understood, explicit_attention

PAGED = "agentrl_paged"
"""Name of this attention. No mask function is registered under this name, so transformers builds no mask."""


@dataclass
class Grid:
    """R rows of up to C new tokens each; every row reads the KV of its blocks.

    Attributes:
        num_tokens: number of the step's packed tokens in this grid.
        positions: [R, C], the position of each new token in its sequence; 0 for padding.
        blocks: [R, W / 16], the blocks that each row reads.
        cells: [num_tokens], index of each packed token among the R x C cells; None if every cell is a token, in order.
    """

    num_tokens: int
    positions: Tensor
    blocks: Tensor
    cells: Tensor | None
    biases: dict[tuple[int | None, int], Tensor] = field(default_factory=dict)

    def bias(self, window: int | None, num_groups: int, dtype: torch.dtype) -> Tensor:
        """Attention bias [R, 1, C * G, W]: 0 for visible keys, -inf for masked ones. Computed once per step."""
        key = (window, num_groups)
        if key not in self.biases:
            self.biases[key] = self._bias(window, num_groups, dtype)
        return self.biases[key]

    def _bias(self, window: int | None, num_groups: int, dtype: torch.dtype) -> Tensor:
        rows, columns = self.positions.shape
        keys_W = torch.arange(self.blocks.shape[1] * KVStore.block_size, device=self.positions.device)
        queries_RC1 = self.positions[:, :, None]
        hidden_RCW = keys_W > queries_RC1
        if window is not None:
            hidden_RCW |= keys_W <= queries_RC1 - window
        bias_RCW = torch.zeros(hidden_RCW.shape, dtype=dtype, device=keys_W.device).masked_fill_(hidden_RCW, -torch.inf)
        return bias_RCW[:, :, None].expand(-1, -1, num_groups, -1).reshape(rows, 1, columns * num_groups, -1)


@dataclass
class Step:
    """One forward of M packed tokens, ordered by grid.

    Attributes:
        write: [M], the slot in the store for each token's KV.
        windows: the sliding window of each layer, None for full attention.
        copied: [X], indices of the tokens whose KV is also written to a second slot.
        copies: [X], the second slot of each of these tokens.
    """

    store: KVStore
    write: Tensor
    grids: Sequence[Grid]
    windows: Mapping[int, int | None]
    copied: Tensor
    copies: Tensor


class _Active(threading.local):
    """The step that the engine's thread computes: a thread-local global, because models cannot pass it to layers."""

    step: Step | None = None


ACTIVE = _Active()


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Store the new keys and values [1, K, M, D], then compute attention of queries [1, H, M, D] within each row.

    Raises:
        UnfaithfulError: the layer passes an argument that is not supported here.
    """
    step = ACTIVE.step
    layer = getattr(module, "layer_idx", None)
    if step is None or not isinstance(layer, int) or layer not in step.windows:
        raise UnfaithfulError(f"layer {layer} is not a layer with cached keys and values")
    check_understood(layer, attention_mask, others)
    step.store.write(layer, step.write, key[0], value[0])  # before any attention: a row may need KV of another row
    if len(step.copies):
        step.store.write(layer, step.copies, *(states[0].index_select(1, step.copied) for states in (key, value)))
    sizes = [grid.num_tokens for grid in step.grids]
    attended = [
        _attend(grid, queries_MHD, step.store.read(layer, grid.blocks), step.windows[layer], scaling, softcap, s_aux)
        for grid, queries_MHD in zip(step.grids, torch.split(query[0].transpose(0, 1), sizes), strict=True)
    ]
    return attended[0] if len(attended) == 1 else torch.cat(attended, dim=1), None


def _attend(
    grid: Grid,
    queries_MHD: Tensor,
    keys_values: tuple[Tensor, Tensor],
    window: int | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention output [1, M, H, D] for the queries of one grid."""
    keys, values = keys_values
    folded, num_groups = _fold(grid, queries_MHD, keys.shape[1])
    bias = grid.bias(window, num_groups, folded.dtype)
    if softcap is None and sinks is None:
        attended = scaled_dot_product_attention(folded, keys, values, attn_mask=bias, scale=scaling)
    else:
        scale = scaling if scaling is not None else folded.shape[-1] ** -0.5
        attended = explicit_attention(folded, keys, values, bias, scale, softcap, sinks)
    return _unfold(grid, attended, num_groups)


def _fold(grid: Grid, tokens_MHD: Tensor, num_key_heads: int) -> tuple[Tensor, int]:
    """[M, H, D] -> [R, K, C * G, D]: heads with a shared key become queries of one head, so keys are not repeated."""
    (rows, columns), (_, heads, size) = grid.positions.shape, tokens_MHD.shape
    if grid.cells is not None:
        tokens_MHD = tokens_MHD.new_zeros(rows * columns, heads, size).index_copy_(0, grid.cells, tokens_MHD)
    groups = heads // num_key_heads
    by_head = tokens_MHD.reshape(rows, columns, num_key_heads, groups, size).permute(0, 2, 1, 3, 4)
    return by_head.reshape(rows, num_key_heads, columns * groups, size), groups


def _unfold(grid: Grid, attended: Tensor, num_groups: int) -> Tensor:
    """[R, K, C * G, D] -> [1, M, H, D], the layout that transformers expects."""
    rows, key_heads, _, size = attended.shape
    by_token = attended.reshape(rows, key_heads, -1, num_groups, size).permute(0, 2, 1, 3, 4)
    tokens = by_token.reshape(1, -1, key_heads * num_groups, size)
    return tokens if grid.cells is None else tokens[:, grid.cells]


AttentionInterface.register(PAGED, paged_attention)
