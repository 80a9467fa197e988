"""FlexAttention over packed tokens: the mask is a prefix tree, so no key is copied.

Axes: M packed tokens, L tokens with padding, H query heads, K key-value heads, D head size, B blocks of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention
from torch.nn.functional import pad

BLOCK = 128
"""Tokens in a block. Kernels skip blocks in which no query attends to a key."""
MAX_KERNELS = 64
"""Upper bound on compiled kernels: each window size, model and data type needs one with gradients and one without.
torch's default is 8."""

Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query, key) -> whether the query attends to the key."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTree:
    """Packed tokens in depth-first order. Token q attends to the tokens k of its path: k <= q < `ends[k]`.

    Attributes:
        ends: [M], index of the last token whose path contains the token, plus 1.
        positions: [M], position of each token in its sample.
    """

    ends: Tensor
    positions: Tensor
    masks: dict[tuple[int | None, int], BlockMask] = field(default_factory=dict)

    def mask(self, window: int | None, num_tokens: int) -> BlockMask:
        """Return the attention mask, computed once for all layers. `num_tokens` is a multiple of BLOCK.

        Tokens after the M packed tokens are padding; each of them attends only to itself.
        """
        if (window, num_tokens) not in self.masks:
            padding = torch.arange(len(self.ends), num_tokens, device=self.ends.device)
            ends_L = torch.cat([self.ends, padding + 1])
            positions_L = torch.cat([self.positions, torch.zeros_like(padding)])
            self.masks[window, num_tokens] = _block_mask(ends_L, positions_L, window)
        return self.masks[window, num_tokens]


def tree_attention(
    tree: PrefixTree,
    query_MHD: Tensor,
    key_MKD: Tensor,
    value_MKD: Tensor,
    window: int | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention outputs, [M, H, D]. Tokens after the end of the tree are padding."""
    num_tokens, padding = len(query_MHD), -len(query_MHD) % BLOCK
    query, key, value = (
        pad(states, [0, 0, 0, 0, 0, padding]).transpose(0, 1)[None] for states in (query_MHD, key_MKD, value_MKD)
    )
    if torch._dynamo.config.recompile_limit < MAX_KERNELS:
        torch._dynamo.config.recompile_limit = MAX_KERNELS  # set here, because each thread has its own value
    found = _kernel(query.device.type)(
        query,
        key,
        value,
        score_mod=None if softcap is None else _capped(softcap),
        block_mask=tree.mask(window, num_tokens + padding),
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
        return_aux=None if sinks is None else AuxRequest(lse=True),
    )
    attended = found if sinks is None else _with_sinks(found[0], found[1].lse, sinks)
    return attended[0].transpose(0, 1)[:num_tokens]


@cache
def _kernel(device: str) -> Callable[..., Any]:  # Any: one or two results
    if device == "cpu":
        return flex_attention
    # fullgraph: above MAX_KERNELS, raise an error instead of running the uncompiled function, which stores every score
    compiled: Callable[..., Any] = torch.compile(flex_attention, fullgraph=True)  # Any: one or two results
    return compiled


@cache
def _capped(softcap: float) -> Callable[..., Tensor]:
    def cap(score: Tensor, *index: Tensor) -> Tensor:
        return torch.tanh(score / softcap) * softcap

    return cap


def _with_sinks(attended: Tensor, log_sums: Tensor, sinks: Tensor) -> Tensor:
    """Scale outputs, [1, H, L, D], as if each head had one more key: its score is the head's sink, its value 0."""
    shares = torch.sigmoid(log_sums - sinks[:, None])  # the gradient of the sinks needs float32
    return (attended * shares[..., None]).to(attended.dtype)


def _block_mask(ends_L: Tensor, positions_L: Tensor, window: int | None) -> BlockMask:
    """Find the (query block, key block) pairs with partial or full attention.

    Only the smallest and largest end and position of each block are compared.
    """
    ends, positions = ends_L.view(-1, BLOCK), positions_L.view(-1, BLOCK)
    first_B = torch.arange(len(ends), device=ends.device) * BLOCK
    later_BB = first_B[:, None] > first_B
    some_BB = later_BB & (ends.amax(1) > first_B[:, None])
    all_BB = later_BB & (ends.amin(1) >= first_B[:, None] + BLOCK)
    if window is not None:
        some_BB &= positions.amax(1) > positions.amin(1)[:, None] - window
        all_BB &= positions.amin(1) > positions.amax(1)[:, None] - window
    some_BB = (some_BB & ~all_BB).fill_diagonal_(True)
    mask, num_tokens = _mask(ends_L, positions_L, window), len(ends_L)
    return BlockMask.from_kv_blocks(
        *_listed(some_BB), *_listed(all_BB), BLOCK_SIZE=BLOCK, mask_mod=mask, seq_lengths=(num_tokens, num_tokens)
    )


def _listed(chosen_BB: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each query block the number of chosen key blocks, and the indices of all key blocks, chosen first."""
    indices_BB = chosen_BB.int().argsort(dim=-1, descending=True, stable=True)
    return chosen_BB.sum(-1, dtype=torch.int32)[None, None], indices_BB.int()[None, None]


def _mask(ends_L: Tensor, positions_L: Tensor, window: int | None) -> Mask:
    def on_path(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends_L[key])

    if window is None:
        return on_path
    before_L = positions_L - window  # a tensor: each new Python number would need a new kernel

    def in_window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return on_path(batch, head, query, key) & (positions_L[key] > before_L[query])

    return in_window
