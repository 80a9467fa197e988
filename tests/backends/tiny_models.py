"""Tiny random models of several families, and training samples."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from agentrl.types.sample import Sample

VOCAB = 61
_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, object]] = {
    "qwen3": {"tie_word_embeddings": True},
    "llama": {"tie_word_embeddings": False},
    "qwen2": {"tie_word_embeddings": False},
    "gemma": {"hidden_act": "gelu_pytorch_tanh"},
    "gemma2": {"final_logit_softcapping": 0.5, "sliding_window": 8},
    "cohere": {"logit_scale": 0.5},
    "gpt_neox": {"attention_dropout": 0.3, "hidden_dropout": 0.3},
    "gpt2": {  # GPT-2's config has its own names for sizes
        "vocab_size": VOCAB,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "resid_pdrop": 0.3,
        "attn_pdrop": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.3, "attention_dropout": 0.3},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "deepseek_v3": {
        "head_dim": 4,  # of the rotary part
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "moe_intermediate_size": 16,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
    },
    "glm4_moe": {
        "moe_intermediate_size": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 4,
        "first_k_dense_replace": 1,
        "attention_bias": True,
        "use_qk_norm": True,
    },
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "mistral": {"sliding_window": 6},
    "gemma3_text": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_oss": {
        "sliding_window": 6,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attn_implementation": "eager",  # the only CPU attention that supports learned sinks
    },
}


def make_model(family: str = "qwen3", seed: int = 0, **options: object) -> PreTrainedModel:
    """A random model with logits far from uniform, so that a wrong temperature or a missing soft cap is noticed."""
    torch.manual_seed(seed)
    special = FAMILIES[family] | options
    attention = special.pop("attn_implementation", "sdpa")
    config = AutoConfig.for_model(family, **({} if family == "gpt2" else _COMMON) | special)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(8.0)
    return model


def save_model(
    path: Path, family: str = "qwen3", dtype: torch.dtype = torch.float32, seed: int = 0, **options: object
) -> Path:
    make_model(family, seed, **options).to(dtype).save_pretrained(path)
    return path


def in_float64(model: PreTrainedModel) -> PreTrainedModel:
    """The same model fully in float64, including the norms that transformers computes in float32."""
    for module in model.double().modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_norm, module)
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")  # the grouped matrix product does not support float64
    return model


def _norm(module: torch.nn.Module, states: torch.Tensor) -> torch.Tensor:
    epsilon = getattr(module, "variance_epsilon", None)
    weight = module.weight if epsilon is not None else 1 + module.weight  # Gemma's norms
    return torch.nn.functional.rms_norm(states, states.shape[-1:], weight, epsilon or module.eps)


def make_samples(num_samples: int, seed: int = 0, max_length: int = 24, *, ref: bool = False) -> list[Sample]:
    """Random multi-turn samples; some consecutive samples share a rollout."""
    draw = random.Random(seed)
    return [_sample(draw, f"rollout-{number - number % 3 // 2}", max_length, ref) for number in range(num_samples)]


def with_returns(samples: list[Sample]) -> list[Sample]:
    """Samples whose targets depend on the previous token, with old values of 0."""
    return [
        replace(
            sample,
            values=[0.0] * len(sample.token_ids),
            returns=[
                trained * (sample.token_ids[index - 1] % 2)
                for index, trained in enumerate(map(float, sample.loss_mask))
            ],
        )
        for sample in samples
    ]


def make_groups(
    seed: int = 0, *, prompts: tuple[tuple[int, int], ...] = ((9, 3), (5, 1), (14, 2), (1, 2))
) -> list[Sample]:
    """For each (length, number) of `prompts`: `number` samples that share a prompt of that length, shuffled.

    The first sample of each prompt has one token of its own; the last sample of all equals the first.
    """
    draw = random.Random(seed)
    samples = []
    for length, number in prompts:
        head = [draw.randrange(VOCAB) for _ in range(length)]
        for position in range(number):
            own = _sample(draw, f"rollout-{len(samples)}", 12 if position else 3, False)
            num_own = len(own.token_ids) - 2 if position == 0 else len(own.token_ids)
            samples.append(_behind(head, own, num_own))
    draw.shuffle(samples)
    return [*samples, samples[0]]


def _behind(head: list[int], own: Sample, num_own: int) -> Sample:
    zeros = [0.0] * len(head)
    return replace(
        own,
        token_ids=head + list(own.token_ids[:num_own]),
        loss_mask=[0] * len(head) + [1, *own.loss_mask[1:num_own]],
        temperatures=[1.0] * len(head) + [0.7, *own.temperatures[1:num_own]],
        advantages=[*zeros, 0.5, *own.advantages[1:num_own]],
        behaviour_logprobs=[*zeros, -4.0, *own.behaviour_logprobs[1:num_own]],
    )


def _sample(draw: random.Random, rollout_id: str, max_length: int, ref: bool) -> Sample:
    length = draw.randint(3, max_length)
    mask = [0, *(draw.randint(0, 1) for _ in range(length - 2)), 1]

    def numbers(low: float, high: float) -> list[float]:
        return [draw.uniform(low, high) * trained for trained in mask]

    return Sample(
        token_ids=[draw.randrange(VOCAB) for _ in range(length)],
        loss_mask=mask,
        temperatures=[draw.choice([0.7, 1.0, 1.3]) if trained else 1.0 for trained in mask],
        advantages=numbers(-1, 1),
        behaviour_logprobs=numbers(-5, -3),
        ref_logprobs=numbers(-5, -3) if ref else None,
        rollout_id=rollout_id,
    )
