"""Tiny models with random weights, large enough that attention matters to their logits."""

from __future__ import annotations

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

VOCABULARY = 97
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "eos_token_id": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
SLIDING_THEN_FULL = ["sliding_attention", "full_attention"]
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "qwen3": ("Qwen3Config", {"head_dim": 8}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "llama": ("LlamaConfig", {"num_key_value_heads": 4}),
    "mistral": ("MistralConfig", {"sliding_window": 11, "head_dim": 8}),
    "gemma2": (
        "Gemma2Config",
        {"head_dim": 8, "sliding_window": 9, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
    ),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 8, "sliding_window": 13, "layer_types": SLIDING_THEN_FULL}),
    "phi3": ("Phi3Config", {}),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "olmo2": ("Olmo2Config", {}),
    "qwen3_moe": ("Qwen3MoeConfig", {"head_dim": 8, "moe_intermediate_size": 24, **EXPERTS}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt_oss": ("GptOssConfig", {"head_dim": 8, "sliding_window": 10, "num_local_experts": 4}),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            "q_lora_rank": 16,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 6,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 1,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
}
WITHOUT_KV: dict[str, tuple[str, dict[str, object]]] = {
    "mamba": ("MambaConfig", {"state_size": 4}),
    "chunked": (
        "Llama4TextConfig",
        {"head_dim": 8, "attention_chunk_size": 16, "intermediate_size_mlp": 48, "num_local_experts": 2},
    ),
    "rescaled_positions": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    ),
    "alibi": ("BloomConfig", {"n_layer": 2, "n_head": 4}),
}


def tiny_model(family: str, attention: str = "eager", **changes: object) -> PreTrainedModel:
    """A model of the family, with the same weights on every call."""
    name, special = {**FAMILIES, **WITHOUT_KV}[family]
    config = getattr(transformers, name)(**{**COMMON, **special, **changes})
    torch.manual_seed(0)
    # eager is the reference: sdpa ignores features it does not support, such as Gemma 2's soft caps
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.eval()
