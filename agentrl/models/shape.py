"""Sizes of a model that must be divisible by the sizes of a parallel layout, from the model's `config.json`."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.config.rules.model_layout import ModelShape

_EXPERT_BIAS = ("deepseek_v3", "glm4_moe")
"""Model types whose router has a bias per expert."""


def model_shape(content: Mapping[str, object]) -> ModelShape | None:
    """Return the shape of a causal language model; None if the file lacks layers, heads or widths."""
    layers, heads = number(content, "num_hidden_layers", "n_layer"), number(content, "num_attention_heads", "n_head")
    intermediate = number(content, "intermediate_size", "n_inner")
    if layers is None or heads is None or intermediate is None:
        return None
    experts = number(content, "num_experts", "num_local_experts", "n_routed_experts") or 0
    expert = number(content, "moe_intermediate_size") or intermediate
    shared = number(content, "shared_expert_intermediate_size")
    return ModelShape(
        num_layers=layers,
        num_heads=heads,
        num_key_value_heads=number(content, "num_key_value_heads") or heads,
        intermediate_size=intermediate if not experts or _has_dense_layers(content) else 0,
        num_experts=experts,
        expert_size=expert,
        shared_size=shared or (number(content, "n_shared_experts") or 0) * expert,
        experts_per_token=number(content, "num_experts_per_tok") or 0,
        num_groups=number(content, "n_group") or 1,
        groups_per_token=number(content, "topk_group") or 1,
        latent_attention=number(content, "kv_lora_rank") is not None,
        expert_bias=content.get("model_type") in _EXPERT_BIAS,
        num_mtp_layers=number(content, "num_nextn_predict_layers") or 0,
        quantization=quantization(content.get("quantization_config")),
    )


def quantization(found: object) -> str:
    """Return the method of a `quantization_config`; empty without one."""
    if not found:
        return ""
    return str(found.get("quant_method", "unknown")) if isinstance(found, Mapping) else "unknown"


def _has_dense_layers(content: Mapping[str, object]) -> bool:
    """Whether some layers of a mixture-of-experts model have no experts."""
    sparse_step = number(content, "decoder_sparse_step") or 1
    return bool(content.get("first_k_dense_replace") or content.get("mlp_only_layers")) or sparse_step > 1


def number(content: Mapping[str, object], *names: str) -> int | None:
    """Return the first entry of `content`, in the order of `names`, that is a positive integer; None if none is."""
    values = (content.get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), None)
