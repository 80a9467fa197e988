"""FLOPs of a model: matrix products only, with 2 FLOPs for a multiplication and its addition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from agentrl.plan.shapes import Shape

BACKWARD = 2
"""FLOPs of the backward pass (gradients of inputs and weights), as a multiple of the FLOPs of the forward pass (Kaplan
et al. 2020, 2001.08361)."""
BACKWARD_FROZEN = 1
"""FLOPs of a backward pass without gradients of weights (LoRA), as a multiple of the FLOPs of the forward pass."""


def body_flops_per_token(shape: Shape) -> float:
    """Return the FLOPs of a forward pass per token: 2 per active weight, without attention scores and without head."""
    return 2.0 * (shape.active - _head_weights(shape) - shape.weights.norms)


def head_flops_per_token(shape: Shape) -> float:
    """Return the FLOPs of the output layer per token.

    The plan counts the output layer for all tokens, although training computes it only for trained tokens.
    """
    return 2.0 * _head_weights(shape)


def attention_flops(shape: Shape, length: float, start: float = 0) -> float:
    """Return the FLOPs of attention scores and weighted sums of all layers, for positions `start` to `length`.

    The query at position i reads i + 1 keys, or the keys in its window (causal attention without padding, Dao 2023,
    2307.08691):

        2 x heads x (head dim + value dim) x sum of the keys read
    """
    of = shape.attention
    per_key = 2.0 * of.heads * (of.head_dim + of.value_dim)
    windows = _counted(shape.windows or (None,) * shape.num_layers)
    return per_key * sum(n * (_keys_read(length, window) - _keys_read(start, window)) for window, n in windows)


def latent_attention_flops(shape: Shape, context: float) -> float:
    """Return the FLOPs to decode one token of MLA with absorbed matrices (DeepSeek-V2, 2405.04434, section 2.1.2).

    Scores and sums are computed with the latent vectors that the cache holds, for each head.
    """
    of = shape.attention
    return 2.0 * of.heads * (2 * of.kv_rank + of.rope_dim) * context * shape.num_layers


def forward_flops(shape: Shape, lengths: Iterable[float], head_share: float = 1.0) -> float:
    """Return the FLOPs of one forward pass over sequences, packed without padding.

    Args:
        head_share: share of the tokens for which logits are computed.
    """
    per_token = body_flops_per_token(shape) + head_share * head_flops_per_token(shape)
    return sum(per_token * length + attention_flops(shape, length) for length in lengths)


@lru_cache(maxsize=64)
def _counted(windows: tuple[int | None, ...]) -> tuple[tuple[int | None, int], ...]:
    return tuple(Counter(windows).items())


def _head_weights(shape: Shape) -> int:
    return shape.vocabulary * shape.hidden


def _keys_read(length: float, window: int | None) -> float:
    """Return how many keys the first `length` queries read in total."""
    inside = length if window is None else min(length, window)
    return inside * (inside + 1) / 2 + (length - inside) * inside
