"""Translate a Hugging Face configuration for megatron-core; refuse options that megatron-core computes differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.nn.functional import silu

from agentrl.config.megatron import MegatronConfig
from agentrl.config.rules.model_layout import quantized_weights
from agentrl.errors import ConfigError, Kind
from agentrl.models.shape import quantization

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "glm4_moe")
"""Model families that this backend trains: values of `model_type` in a Hugging Face configuration."""
BRIDGED = ("gemma", "mistral")
"""Model families that this backend trains with megatron-bridge, which maps architecture and weights."""
_EXPERT_BIAS = ("deepseek_v3", "glm4_moe")
_MIXTURES = ("qwen3_moe", *_EXPERT_BIAS)
_OPTIONS: dict[str, tuple[object, ...]] = {
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "attention_dropout": (0, None),
    "use_sliding_window": (False, None),
    "hidden_act": ("silu",),
}
"""Option of a Hugging Face configuration -> values for which megatron-core computes the same as transformers."""
_OPTIONS_OF_FAMILY: dict[str, dict[str, tuple[object, ...]]] = {
    "deepseek_v3": {"rope_interleave": (True,), "rms_norm_eps": (1e-6,)},  # the latent norms of transformers use 1e-6
    "glm4_moe": {"attention_bias": (False, None, True)},  # True: queries, keys and values have a bias
    "gemma": {
        "hidden_act": ("gelu_pytorch_tanh",),
        "tie_word_embeddings": (True,),
        "use_bidirectional_attention": (None, False),
    },
    "mistral": {"sliding_window": (None,)},
}
_ROPE_OPTIONS: dict[str, dict[str, tuple[object, ...]]] = {
    "default": {},
    "llama3": {"low_freq_factor": (1,), "high_freq_factor": (4,), "original_max_position_embeddings": (8192,)},
    "yarn": {"truncate": (True,), "attention_factor": (None,)},
}
"""Type of position embeddings -> its options -> supported values; megatron-core has no arguments for other values."""


_OTHER_ROPE = {"deepseek_v3": "yarn"} | dict.fromkeys(BRIDGED, "default")


def rope_arguments(hf: PretrainedConfig) -> dict[str, Any]:  # Any: arguments of megatron-core
    """Return the model's arguments for rotary embeddings; latent attention has configuration options instead."""
    rope = hf.rope_parameters
    return {
        "rotary_base": float(rope["rope_theta"]),
        "rotary_percent": float(rope.get("partial_rotary_factor", 1.0)),
        "rope_scaling": rope["rope_type"] == "llama3",
        "rope_scaling_factor": float(rope.get("factor") or 1.0),
    }


def transformer_config(
    hf: PretrainedConfig, dtype: torch.dtype, layout: MegatronConfig, *, recompute: bool, key: str
) -> TransformerConfig:
    """Return megatron-core's configuration of a model in this layout.

    Args:
        recompute: recompute all layers in the backward pass, unless `layout` sets `recompute_granularity`.
        key: the configuration key that the model's path came from, for error messages.

    Raises:
        ConfigError: the model has an option that this backend does not support.
    """
    check_supported(hf, key)
    options = _sizes(hf) | run_options(hf, dtype, layout, recompute=recompute)
    if hf.model_type in _MIXTURES:
        options |= _experts(hf, layout)
    if hf.model_type == "deepseek_v3":
        return MLATransformerConfig(**options | _latent_attention(hf))
    return TransformerConfig(**options | _attention(hf))


def check_supported(hf: PretrainedConfig, key: str) -> None:
    """Check that megatron-core computes this model as transformers does.

    Raises:
        ConfigError: the model's type, quantization, or an option of its configuration is not supported; the message
            names it.
    """
    if hf.model_type not in (*FAMILIES, *BRIDGED):
        types = f"only {', '.join(FAMILIES)}, and with megatron-bridge {', '.join(BRIDGED)}"
        raise _unsupported(key, f"models of type '{hf.model_type}', {types}")
    if method := quantization(getattr(hf, "quantization_config", None)):
        raise ConfigError(quantized_weights(key, method))
    for name, values in (_OPTIONS | _OPTIONS_OF_FAMILY.get(hf.model_type, {})).items():
        if (value := getattr(hf, name, values[0])) not in values:
            raise _unsupported(key, f"'{name}: {value}' in config.json")
    _check_rope(hf, key)
    if hf.model_type in _EXPERT_BIAS:
        _check_routing(hf, key)


def _check_rope(hf: PretrainedConfig, key: str) -> None:
    rope = hf.rope_parameters
    kind = rope["rope_type"]
    if kind not in ("default", _OTHER_ROPE.get(hf.model_type, "llama3")):
        raise _unsupported(key, f"position embeddings of type '{kind}' in a model of type '{hf.model_type}'")
    options = _ROPE_OPTIONS[kind] | ({} if hf.model_type == "glm4_moe" else {"partial_rotary_factor": (1,)})
    for name, values in options.items():
        if (value := rope.get(name, values[0])) not in values:
            raise _unsupported(key, f"'{name}: {value}' of position embeddings of type '{kind}'")
    if kind == "yarn" and rope.get("mscale_all_dim") and not rope.get("mscale"):
        raise _unsupported(key, "'mscale_all_dim' without 'mscale' in config.json")


def _check_routing(hf: PretrainedConfig, key: str) -> None:
    if not hf.norm_topk_prob:
        raise _unsupported(key, f"'norm_topk_prob: false' in config.json of a model of type '{hf.model_type}'")
    if hf.n_group > 1 and hf.num_experts_per_tok // hf.topk_group != 2:
        # megatron-core ranks groups of experts by their best num_experts_per_tok // topk_group experts, transformers by
        # the best 2 experts
        text = f"'num_experts_per_tok' other than 2 'topk_group' in config.json of a model of type '{hf.model_type}'"
        raise _unsupported(key, text)


def _unsupported(key: str, what: str) -> ConfigError:
    text = f"{key}: `actor.backend=megatron` does not support {what}: use `actor.backend=torch`"
    return ConfigError.at(key, Kind.NOT_SUPPORTED, text)


def run_options(
    hf: PretrainedConfig, dtype: torch.dtype, layout: MegatronConfig, *, recompute: bool
) -> dict[str, Any]:  # Any: options of megatron-core
    """Return the options that do not depend on the model's architecture; see `transformer_config`."""
    return _numerics() | _parallel(hf, dtype, layout) | _recomputed(layout, everything=recompute)


def _sizes(hf: PretrainedConfig) -> dict[str, Any]:
    return {
        "num_layers": hf.num_hidden_layers,
        "hidden_size": hf.hidden_size,
        "ffn_hidden_size": hf.intermediate_size,
        "num_attention_heads": hf.num_attention_heads,
        "normalization": "RMSNorm",
        "layernorm_epsilon": hf.rms_norm_eps,
        "gated_linear_unit": True,
        "activation_func": silu,
        "add_bias_linear": False,
    }


def _numerics() -> dict[str, Any]:
    return {
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "perform_initialization": False,  # weights are always read from a checkpoint
        "use_cpu_initialization": not torch.cuda.is_available(),
        "gradient_accumulation_fusion": False,
        "bias_dropout_fusion": False,
        "bias_activation_fusion": False,
        "masked_softmax_fusion": False,
        "calculate_per_token_loss": True,  # gradients are summed, not averaged
    }


def _parallel(hf: PretrainedConfig, dtype: torch.dtype, layout: MegatronConfig) -> dict[str, Any]:
    return {
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
        "tensor_model_parallel_size": layout.tensor_model_parallel_size,
        "sequence_parallel": layout.sequence_is_parallel,
        "pipeline_model_parallel_size": layout.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": layout.virtual_stages,
        "num_layers_in_first_pipeline_stage": layout.num_layers_in_first_pipeline_stage,
        "num_layers_in_last_pipeline_stage": layout.num_layers_in_last_pipeline_stage,
        "context_parallel_size": layout.context_parallel_size,
        "expert_model_parallel_size": layout.expert_model_parallel_size,
        "expert_tensor_parallel_size": layout.expert_tensor_size,
        "variable_seq_lengths": layout.pipeline_model_parallel_size > 1,
        "moe_token_dispatcher_type": layout.moe_token_dispatcher_type if hf.model_type in _MIXTURES else "alltoall",
        "batch_p2p_comm": False,
    }


def _recomputed(layout: MegatronConfig, *, everything: bool) -> dict[str, Any]:
    granularity = layout.recompute_granularity or ("full" if everything else None)
    if granularity == "selective":
        return {"recompute_granularity": granularity, "recompute_modules": [*layout.recompute_modules] or ["core_attn"]}
    if granularity is None:
        return {}
    return {
        "recompute_granularity": granularity,
        "recompute_method": layout.recompute_method or "uniform",
        "recompute_num_layers": layout.recompute_num_layers or 1,
    }


def _attention(hf: PretrainedConfig) -> dict[str, Any]:
    return {
        "num_query_groups": hf.num_key_value_heads,
        "kv_channels": getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads,
        "qk_layernorm": hf.model_type.startswith("qwen3") or bool(getattr(hf, "use_qk_norm", False)),
        "add_qkv_bias": hf.model_type == "qwen2" or bool(getattr(hf, "attention_bias", False)),
    }


def _experts(hf: PretrainedConfig, layout: MegatronConfig) -> dict[str, Any]:
    common = {
        "moe_router_topk": hf.num_experts_per_tok,
        "moe_ffn_hidden_size": hf.moe_intermediate_size,
        "moe_router_load_balancing_type": "aux_loss" if layout.moe_aux_loss_coeff else "none",
        "moe_aux_loss_coeff": layout.moe_aux_loss_coeff,
        "moe_z_loss_coeff": layout.moe_z_loss_coeff or None,
        "moe_router_bias_update_rate": 0.0,
        "moe_router_dtype": layout.moe_router_dtype,
        "moe_grouped_gemm": False,
    }
    if hf.model_type == "qwen3_moe":
        sparse = [_is_sparse(hf, layer) for layer in range(hf.num_hidden_layers)]
        own = {"num_moe_experts": hf.num_experts, "moe_router_pre_softmax": not hf.norm_topk_prob}
        return common | own | {"moe_layer_freq": sparse}
    return common | {
        "num_moe_experts": hf.n_routed_experts,
        "moe_layer_freq": [int(layer >= hf.first_k_dense_replace) for layer in range(hf.num_hidden_layers)],
        "moe_router_score_function": "sigmoid",
        "moe_router_dtype": layout.moe_router_dtype or "fp32",
        "moe_router_pre_softmax": True,
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": layout.moe_router_bias_update_rate,
        "moe_router_num_groups": hf.n_group if hf.n_group > 1 else None,
        "moe_router_group_topk": hf.topk_group if hf.n_group > 1 else None,
        "moe_router_topk_scaling_factor": hf.routed_scaling_factor,
        "moe_shared_expert_intermediate_size": hf.n_shared_experts * hf.moe_intermediate_size,
        "moe_shared_expert_overlap": False,
    }


def _is_sparse(hf: PretrainedConfig, layer: int) -> int:
    return int(layer not in (hf.mlp_only_layers or ()) and (layer + 1) % hf.decoder_sparse_step == 0)


def _latent_attention(hf: PretrainedConfig) -> dict[str, Any]:
    return {
        "multi_latent_attention": True,
        "qk_layernorm": True,
        "q_lora_rank": hf.q_lora_rank,
        "kv_lora_rank": hf.kv_lora_rank,
        "qk_head_dim": hf.qk_nope_head_dim,
        "qk_pos_emb_head_dim": hf.qk_rope_head_dim,
        "v_head_dim": hf.v_head_dim,
        "rotary_base": float(hf.rope_parameters["rope_theta"]),
        "rotary_percent": 1.0,
        "apply_rope_fusion": False,
    } | _latent_rope(hf)


def _latent_rope(hf: PretrainedConfig) -> dict[str, Any]:
    rope = hf.rope_parameters
    if rope["rope_type"] == "default":
        return {"rope_type": "rope", "rotary_scaling_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    all_dim = float(rope.get("mscale_all_dim") or 0)
    return {
        "rope_type": "yarn",
        "rotary_scaling_factor": float(rope["factor"]),
        "original_max_position_embeddings": rope["original_max_position_embeddings"],
        "beta_fast": rope.get("beta_fast") or 32,
        "beta_slow": rope.get("beta_slow") or 1,
        "mscale": float(rope["mscale"]) if all_dim else 1.0,  # read by transformers only with `mscale_all_dim`
        "mscale_all_dim": all_dim,
    }
