"""The shape of a model: number of weights by part, and the sizes that determine memory and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Numbers of weights by part.

    Attributes:
        embeddings, head: the token embeddings and the output layer; a tied head has 0.
        attention: projections with their biases.
        dense: feed-forward layers without experts.
        experts, router, shared: routed experts, their routers, and shared experts (used by every token).
        norms: all normalizations.
    """

    embeddings: int = 0
    head: int = 0
    attention: int = 0
    dense: int = 0
    experts: int = 0
    router: int = 0
    shared: int = 0
    norms: int = 0

    def __add__(self, other: Weights) -> Weights:
        return Weights(**{name: getattr(self, name) + getattr(other, name) for name in PARTS})

    def times(self, number: int) -> Weights:
        """Return the weights of `number` copies."""
        return Weights(**{name: getattr(self, name) * number for name in PARTS})

    @property
    def total(self) -> int:
        """Number of all weights."""
        layers = self.attention + self.dense + self.experts + self.router + self.shared
        return self.embeddings + self.head + layers + self.norms


def sum_of(layers: Iterable[Weights]) -> Weights:
    """Return the sum over all layers. Equal layers are added once, multiplied by their number."""
    return sum((layer.times(number) for layer, number in Counter(layers).items()), Weights())


PARTS = tuple(Weights.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Sizes of the attention of every layer.

    Attributes:
        heads, kv_heads: query heads and key-value heads.
        head_dim, value_dim: channels of a query or key, and of a value.
        query_rank, kv_rank: ranks of latent attention (MLA); 0 without MLA. With MLA, `query_rank` 0 means that queries
            are not compressed.
        rope_dim: channels of a latent key that all heads share.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    query_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0

    @property
    def is_latent(self) -> bool:
        """Whether this is multi-head latent attention."""
        return self.kv_rank > 0

    @property
    def cached(self) -> int:
        """Numbers in the KV cache per token and layer. For MLA, an engine caches the latent vectors."""
        return self.kv_rank + self.rope_dim if self.is_latent else self.kv_heads * (self.head_dim + self.value_dim)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A causal language model.

    Attributes:
        name: `model_type` of its `config.json`.
        layers: the weights of each layer.
        outer: the weights outside of the layers.
        hidden: width of the states between layers.
        intermediate: width of a dense feed-forward layer.
        experts, experts_per_token, expert_size: routed experts of a layer, experts chosen per token, width of an
            expert.
        shared_size: width of all shared experts together.
        windows: the sliding window of each layer, in tokens; None for full attention.
        tied: whether the head and the embeddings are the same weight.
        dtype: data type of the checkpoint.
        mtp: the weights of each layer for multi-token prediction; such layers are not sent to engines.
        context: maximum number of positions; None if unknown.
        normed_heads: whether queries and keys are normalized per head.
    """

    name: str
    layers: tuple[Weights, ...]
    outer: Weights
    attention: Attention
    hidden: int
    vocabulary: int
    intermediate: int
    experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    shared_size: int = 0
    windows: tuple[int | None, ...] = ()
    tied: bool = False
    dtype: str = "float32"
    mtp: tuple[Weights, ...] = ()
    context: int | None = None
    normed_heads: bool = False

    @property
    def num_layers(self) -> int:
        """Number of layers, without the layers of multi-token prediction."""
        return len(self.layers)

    @cached_property
    def weights(self) -> Weights:
        """All weights, without the weights of multi-token prediction."""
        return sum_of(self.layers) + self.outer

    @property
    def active(self) -> int:
        """Number of weights that one token uses: all except the embeddings and the experts not chosen for the token."""
        found = self.weights
        chosen = found.experts * self.experts_per_token // self.experts if self.experts else 0
        head = self.vocabulary * self.hidden if self.tied else 0
        return found.total - found.experts - found.embeddings + chosen + head

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has routed experts."""
        return self.layers[layer].experts > 0
