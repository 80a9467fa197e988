"""FLOPs against torch's own counter on small models, and hand counts."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.plan.counts import shape_of
from agentrl.plan.shapes import Shape
from agentrl.plan.time.flops import (
    attention_flops,
    body_flops_per_token,
    forward_flops,
    head_flops_per_token,
    latent_attention_flops,
)

SIZES = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"vocab_size": 200, "intermediate_size": 160, "head_dim": 32, "max_position_embeddings": 256}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 20}
SHARED = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "n_shared_experts": 1}
GROUPS = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4}
FAMILIES: dict[str, dict[str, object]] = {
    "qwen3": {},
    "llama": {"tie_word_embeddings": True},
    "qwen3_moe": EXPERTS,
    "deepseek_v3": {**LATENT, **SHARED, **GROUPS, "head_dim": 8},  # rotary channels there
}


def content_of(family: str) -> dict[str, object]:
    return {"model_type": family, **SIZES, **FAMILIES[family]}


def shape(family: str) -> Shape:
    found = shape_of(content_of(family))
    assert found is not None
    return found


def counted(family: str, length: int, *, backward: bool = False) -> float:
    """FLOPs that torch counts for one sequence. Attention is eager: each query reads all keys."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**content_of(family))
    config._attn_implementation, config._experts_implementation = "eager", "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tokens = torch.arange(length)[None] % 200
    with FlopCounterMode(display=False) as counter:
        logits = model(tokens, use_cache=False).logits
        if backward:
            logits.sum().backward()
    return float(counter.get_total_flops())


def without_causality(of: Shape, length: int) -> float:
    return forward_flops(of, [length]) - attention_flops(of, length) + _full_attention(of, length)


def _full_attention(of: Shape, length: int) -> float:
    heads = of.attention
    return 2.0 * heads.heads * (heads.head_dim + heads.value_dim) * length**2 * of.num_layers


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [32, 120])
def test_a_forward_pass_has_the_flops_that_torch_counts(family, length):
    assert without_causality(shape(family), length) == pytest.approx(counted(family, length), rel=0.02)


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_and_backward_are_three_forward_passes(family):
    assert 3 * without_causality(shape(family), 64) == pytest.approx(counted(family, 64, backward=True), rel=0.03)


def test_causal_attention_by_hand():
    of = shape("qwen3")
    one_key = 2 * 4 * (32 + 32) * 2  # QK and AV: heads x (head dim + value dim), 2 layers
    assert attention_flops(of, 3) == one_key * (1 + 2 + 3)
    assert attention_flops(of, 5, start=3) == one_key * (4 + 5)


def test_packed_sequences_do_not_see_each_other():
    of = shape("qwen3")
    assert forward_flops(of, [10, 20]) == forward_flops(of, [10]) + forward_flops(of, [20]) < forward_flops(of, [30])


def test_a_window_bounds_the_keys():
    found = shape_of({**content_of("qwen3"), "sliding_window": 4, "layer_types": ["sliding_attention"] * 2})
    assert found is not None
    one_key = 2 * 4 * 64 * 2
    assert attention_flops(found, 6) == one_key * (1 + 2 + 3 + 4 + 4 + 4)


def test_logits_of_trained_tokens_only():
    of = shape("qwen3")
    saved = forward_flops(of, [100]) - forward_flops(of, [100], head_share=0.25)
    assert saved == pytest.approx(75 * 2 * 96 * 200)


def test_decoding_latent_attention_by_hand():
    """Scores with 16 + 8 and sums with 16 latent channels, 4 heads, 2 layers, 10 keys."""
    assert latent_attention_flops(shape("deepseek_v3"), 10) == 2 * 4 * (16 + 8 + 16) * 10 * 2


def test_public_models_have_twice_their_active_weights():
    """DeepSeek-V3: 37 billion active weights, 671 in all (arXiv:2412.19437), of which 0.9 are embeddings."""
    from large_models import shape_of as content

    found = shape_of(content("deepseek_v3"))
    assert found is not None
    per_token = body_flops_per_token(found) + head_flops_per_token(found)
    assert per_token / 2 == pytest.approx(36.7e9, rel=0.02)
