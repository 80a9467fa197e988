"""Attention over packed tokens, in which samples share the keys and values of their common prefixes.

Axes: M packed tokens, R rows, C columns, W keys of a row, H query heads, K key-value heads, D head size.
"""

from __future__ import annotations

from math import gcd
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentrl.backends.torch.layout import Grid, Layout
from agentrl.backends.torch.prefix_tree import tree_attention
from agentrl.models.attention import UnfaithfulError, check_understood, explicit_attention

SHARED = "agentrl_shared"
"""Name of this attention in transformers. No mask function has this name, so transformers builds no mask."""


def shared_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    packed_layout: Layout | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Attention from queries [1, H, M, D] to the keys [1, K, M, D] that `packed_layout` assigns to each query.

    The layout is an argument of the model's forward, because layers that are recomputed in the backward pass (possibly
    on another thread) receive only arguments.

    Raises:
        UnfaithfulError: the layer passes an argument that is not supported here.
    """
    layer: int = getattr(module, "layer_idx", -1)
    if packed_layout is None or layer not in packed_layout.windows:
        raise UnfaithfulError(f"layer {layer} does not pass its arguments to its attention")
    check_understood(layer, attention_mask, others)
    window = packed_layout.windows[layer]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    peers = packed_layout.peers
    key, value = (_for_each(peers.size, states) for states in (key, value))
    query, key, value = (peers.all_positions(states[0].transpose(0, 1)) for states in (query, key, value))
    if s_aux is not None:
        s_aux = s_aux.chunk(peers.size)[peers.index]
    attended = packed_attention(packed_layout, query, key, value, scale, window=window, softcap=softcap, sinks=s_aux)
    return peers.all_heads(attended)[None], None


def packed_attention(
    layout: Layout,
    query_MHD: Tensor,
    key_MKD: Tensor,
    value_MKD: Tensor,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention outputs, [M, H, D]; the values may have another D than queries and keys."""
    if layout.tree is not None:
        query, key, value = (states.to(_computed_dtype(query_MHD)) for states in (query_MHD, key_MKD, value_MKD))
        return tree_attention(layout.tree, query, key, value, window, scale, softcap, sinks)
    grids = [_attend(grid, query_MHD, key_MKD, value_MKD, window, scale, softcap, sinks) for grid in layout.grids]
    return torch.cat(grids).index_select(0, layout.cells)


def _for_each(size: int, states_1KMD: Tensor) -> Tensor:
    """Repeat key-value heads as often as needed to give the same number to each of `size` processes."""
    times = size // gcd(size, states_1KMD.shape[1])
    return states_1KMD if times == 1 else states_1KMD.repeat_interleave(times, dim=1)


def _attend(
    grid: Grid,
    query_MHD: Tensor,
    key_MKD: Tensor,
    value_MKD: Tensor,
    window: int | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention outputs of one grid, [R * C, H, D]."""
    num_rows, num_columns, num_keys = grid.shape
    query, key, value = (
        tokens.index_select(0, cells).view(num_rows, width, *tokens.shape[1:]).transpose(1, 2)
        for tokens, cells, width in (
            (query_MHD, grid.queries, num_columns),
            (key_MKD, grid.keys, num_keys),
            (value_MKD, grid.keys, num_keys),
        )
    )
    explicit = softcap is not None or sinks is not None
    causal = grid.causal and not explicit and (window is None or window >= num_keys)
    bias = None if causal else grid.bias(window, _computed_dtype(query))
    if explicit or (bias is not None and query.device.type != "cpu"):  # GPU kernels accept no bias with shared heads
        key, value = (states.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for states in (key, value))
    if explicit:
        attended = explicit_attention(query, key, value, cast(Tensor, bias), scale, softcap, sinks)
    else:
        attended = scaled_dot_product_attention(
            query, key, value, attn_mask=bias, is_causal=causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )
    return attended.transpose(1, 2).flatten(0, 1)


def _computed_dtype(tensor: Tensor) -> torch.dtype:
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


AttentionInterface.register(SHARED, shared_attention)
