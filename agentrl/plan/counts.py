"""Count the weights of a model from its `config.json`, without loading weights or importing torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentrl.models.shape import number
from agentrl.plan.shapes import Attention, Shape, Weights

FAMILIES = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    *("deepseek_v2", "deepseek_v3", "glm4_moe"),
)
"""Values of `model_type` for which this module counts weights. The module `meta` counts the weights of other models."""
NO_MODEL = "the folder of the run's model, which is gone"
"""Value of `model.path` if the model of a saved run is not in a folder of this machine."""
_BIASED_KEYS = ("qwen2", "qwen2_moe")
_BIASED_OUTPUTS = ("llama", "qwen3", "qwen3_moe")
"""Families in which `attention_bias` also means a bias of the output projection."""
_UNBIASED = ("mistral", "mixtral")
_NORMED_HEADS = ("qwen3", "qwen3_moe")
_WINDOWED = "sliding_attention"
_DTYPES = ("float32", "bfloat16", "float16")


def shape_of(content: Mapping[str, object]) -> Shape | None:
    """Return the shape of a model. Return None if its family is not in `FAMILIES`, or if `content` lacks a size.

    Args:
        content: the content of `config.json`.
    """
    if content.get("model_type") not in FAMILIES:
        return None
    try:
        return _counted(content)
    except _MissingError:
        return None


class _MissingError(Exception):
    """An entry of `config.json` is missing, or is not a positive integer."""


def _needed(content: Mapping[str, object], *names: str) -> int:
    if (found := number(content, *names)) is None:
        raise _MissingError(names[0])
    return found


def _counted(content: Mapping[str, object]) -> Shape:
    sizes = sizes_of(content)
    layers = range(_needed(content, "num_hidden_layers"))
    sparse = [bool(sizes.experts) and _is_sparse(content, layer) for layer in layers]
    mtp = number(content, "num_nextn_predict_layers") or 0
    return assembled(
        content,
        sizes,
        layers=[_layer(content, sizes, sparse=each) for each in sparse],
        outer=_outer(content, sizes),
        mtp=mtp * (_predicting(content, sizes),),
    )


def _predicting(content: Mapping[str, object], sizes: Sizes) -> Weights:
    """Count the weights of a layer for multi-token prediction, without the copies of embedding and head."""
    return _layer(content, sizes, sparse=True) + Weights(dense=2 * sizes.hidden**2, norms=3 * sizes.hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes in a `config.json`; see `Shape`."""

    attention: Attention
    hidden: int
    vocabulary: int
    intermediate: int
    experts: int
    experts_per_token: int
    expert_size: int
    shared_size: int


def sizes_of(content: Mapping[str, object]) -> Sizes:
    """Read the sizes of a model."""
    hidden = _needed(content, "hidden_size", "n_embd")
    intermediate = number(content, "intermediate_size", "n_inner") or 4 * hidden
    experts = number(content, "num_experts", "num_local_experts", "n_routed_experts") or 0
    expert = number(content, "moe_intermediate_size") or intermediate
    shared = number(content, "shared_expert_intermediate_size")
    return Sizes(
        attention=_attention(content, hidden),
        hidden=hidden,
        vocabulary=_needed(content, "vocab_size"),
        intermediate=intermediate,
        experts=experts,
        experts_per_token=(number(content, "num_experts_per_tok", "top_k_experts") or 0) if experts else 0,
        expert_size=expert if experts else 0,
        shared_size=(shared or (number(content, "n_shared_experts") or 0) * expert) if experts else 0,
    )


def assembled(
    content: Mapping[str, object],
    sizes: Sizes,
    *,
    layers: Sequence[Weights],
    outer: Weights,
    mtp: tuple[Weights, ...] = (),
) -> Shape:
    """Return the shape with these sizes and weight counts."""
    return Shape(
        name=str(content.get("model_type")),
        layers=tuple(layers),
        outer=outer,
        windows=tuple(_window(content, layer) for layer in range(len(layers))),
        tied=outer.head == 0,
        dtype=_dtype(content),
        mtp=mtp,
        context=number(content, "max_position_embeddings", "n_positions"),
        normed_heads=content.get("model_type") in _NORMED_HEADS or content.get("use_qk_norm") is True,
        **{name: getattr(sizes, name) for name in Sizes.__dataclass_fields__},
    )


def _dtype(content: Mapping[str, object]) -> str:
    found = content.get("dtype", content.get("torch_dtype"))
    return found if isinstance(found, str) and found in _DTYPES else "float32"


def _attention(content: Mapping[str, object], hidden: int) -> Attention:
    heads = _needed(content, "num_attention_heads", "n_head")
    if kv_rank := number(content, "kv_lora_rank"):
        rope = _needed(content, "qk_rope_head_dim")
        return Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=_needed(content, "qk_nope_head_dim") + rope,
            value_dim=_needed(content, "v_head_dim"),
            query_rank=number(content, "q_lora_rank") or 0,
            kv_rank=kv_rank,
            rope_dim=rope,
        )
    usual = 128 if content.get("model_type") == "qwen3" else hidden // heads
    head_dim = number(content, "head_dim") or usual
    kv_heads = number(content, "num_key_value_heads") or heads
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=head_dim)


def _is_sparse(content: Mapping[str, object], layer: int) -> bool:
    first = number(content, "first_k_dense_replace") or 0
    dense = content.get("mlp_only_layers")
    if layer < first or (isinstance(dense, list) and layer in dense):
        return False
    return (layer + 1) % (number(content, "decoder_sparse_step") or 1) == 0


def _window(content: Mapping[str, object], layer: int) -> int | None:
    size = number(content, "sliding_window")
    kinds = content.get("layer_types")
    if isinstance(kinds, list):
        return size if layer < len(kinds) and kinds[layer] == _WINDOWED else None
    if content.get("model_type") in _UNBIASED:
        return size
    first = number(content, "max_window_layers") or 0
    return size if content.get("use_sliding_window") and layer >= first else None


def _outer(content: Mapping[str, object], sizes: Sizes) -> Weights:
    table = sizes.vocabulary * sizes.hidden
    tied = content.get("tie_word_embeddings") is True
    return Weights(embeddings=table, head=0 if tied else table, norms=sizes.hidden)


def _layer(content: Mapping[str, object], sizes: Sizes, *, sparse: bool) -> Weights:
    hidden, family = sizes.hidden, content.get("model_type")
    normed = family in _NORMED_HEADS or (family == "glm4_moe" and content.get("use_qk_norm") is True)
    attention, norms = _latent(content, sizes) if sizes.attention.is_latent else _grouped(content, sizes)
    norms += 2 * hidden + (2 * sizes.attention.head_dim if normed else 0)
    if not sparse:
        bias = 2 * sizes.intermediate + hidden if content.get("mlp_bias") is True and family == "llama" else 0
        return Weights(attention=attention, norms=norms, dense=3 * hidden * sizes.intermediate + bias)
    gate = hidden if family == "qwen2_moe" else 0
    return Weights(
        attention=attention,
        norms=norms,
        experts=3 * hidden * sizes.expert_size * sizes.experts,
        router=hidden * sizes.experts,
        shared=3 * hidden * sizes.shared_size + gate,
    )


def _grouped(content: Mapping[str, object], sizes: Sizes) -> tuple[int, int]:
    """Return (number of weights of the projections, number of weights of the norms of the projections)."""
    of, family = sizes.attention, content.get("model_type")
    queries, keys = of.heads * of.head_dim, of.kv_heads * of.head_dim
    biased = family in _BIASED_KEYS or (content.get("attention_bias") is True and family not in _UNBIASED)
    bias = queries + 2 * keys if biased else 0
    if biased and family in _BIASED_OUTPUTS:
        bias += sizes.hidden
    return 2 * sizes.hidden * (queries + keys) + bias, 0


def _latent(content: Mapping[str, object], sizes: Sizes) -> tuple[int, int]:
    of, hidden = sizes.attention, sizes.hidden
    queries = of.heads * of.head_dim
    down = hidden * (of.query_rank + of.kv_rank + of.rope_dim)
    up = (of.query_rank or hidden) * queries + of.kv_rank * of.heads * (of.head_dim - of.rope_dim + of.value_dim)
    bias = of.query_rank + of.kv_rank + of.rope_dim + hidden if content.get("attention_bias") is True else 0
    return down + up + of.heads * of.value_dim * hidden + bias, of.query_rank + of.kv_rank
