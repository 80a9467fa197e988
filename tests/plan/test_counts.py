from __future__ import annotations

import pytest
from large_models import PUBLISHED, WITH_MEGATRON, weights_of
from large_models import shape_of as content_of

from agentrl.plan.counts import FAMILIES, shape_of
from agentrl.plan.meta import counted
from agentrl.plan.shapes import sum_of

SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 96}
SMALL |= {"intermediate_size": 80, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128}
EXPERTS = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
LATENT = {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 12, "num_key_value_heads": 4}
FIRST_DENSE = {"n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
OWN: dict[str, dict[str, object]] = {
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "qwen2_moe": {"num_experts": 6, "shared_expert_intermediate_size": 40, **EXPERTS},
    "qwen3_moe": {"num_experts": 6, "decoder_sparse_step": 2, "mlp_only_layers": [1], **EXPERTS},
    "deepseek_v2": {"q_lora_rank": None, **LATENT, **FIRST_DENSE, **EXPERTS},
    "deepseek_v3": {"q_lora_rank": 16, **LATENT, **FIRST_DENSE, **EXPERTS},
    "glm4_moe": {"use_qk_norm": True, **FIRST_DENSE, **EXPERTS},
}


def config_of(family: str, **others: object) -> dict[str, object]:
    return {"model_type": family, **SMALL, **OWN.get(family, {}), **others}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("others", [{}, {"attention_bias": True, "tie_word_embeddings": True}])
def test_the_counts_are_those_of_transformers(family, others):
    own = {"mlp_bias": True} if family == "llama" and others else {}
    content = config_of(family, **others, **own)
    assert shape_of(content) == counted(content)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_counts_of_public_models_are_those_of_transformers(name):
    found = shape_of(content_of(name))
    assert found is not None
    assert found.weights.total == sum(weights_of(name).values()) == pytest.approx(PUBLISHED[name], rel=0.01)


def test_active_weights_are_those_that_the_authors_give():
    assert active("qwen3_30b_a3b") == pytest.approx(3.3e9, rel=0.1)
    assert active("qwen3_235b_a22b") == pytest.approx(22e9, rel=0.05)
    assert active("deepseek_v3") == pytest.approx(37e9, rel=0.05)
    assert active("glm_4_5") == pytest.approx(32e9, rel=0.05)


def active(name: str) -> int:
    found = shape_of(content_of(name))
    assert found is not None
    return found.active


def test_the_layer_for_multi_token_prediction_is_counted_apart():
    """DeepSeek-V3 has 685 billion weights with it."""
    found = shape_of(content_of("deepseek_v3"))
    assert found is not None
    assert found.weights.total + sum_of(found.mtp).total + 2 * found.outer.head == pytest.approx(685e9, rel=0.002)
    assert all(shape_of(content_of(name)).mtp for name in WITH_MEGATRON if not name.startswith("qwen"))


def test_a_cache_holds_keys_and_values_or_latent_vectors():
    assert shape_of(content_of("qwen3_8b")).attention.cached == 2 * 8 * 128
    assert shape_of(content_of("deepseek_v3")).attention.cached == 512 + 64


def test_windows_follow_the_types_of_layers():
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    found = shape_of(config_of("qwen3", use_sliding_window=True, sliding_window=32, layer_types=kinds))
    assert found.windows == (None, 32, None)
    assert shape_of(config_of("mistral", sliding_window=16)).windows == (16, 16, 16)
    assert shape_of(config_of("qwen2", sliding_window=16, use_sliding_window=False)).windows == (None, None, None)


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"])
def test_an_incomplete_file_has_no_shape(missing):
    assert shape_of({key: value for key, value in config_of("qwen3").items() if key != missing}) is None


def test_other_families_are_counted_from_the_model():
    content = config_of("gemma2", layer_types=["sliding_attention", "full_attention", "full_attention"])
    content |= {"sliding_window": 8, "query_pre_attn_scalar": 16}
    assert shape_of(content) is None
    found = counted(content)
    assert [layer.norms for layer in found.layers] == [4 * 64] * 3
    assert found.tied
    assert found.outer.embeddings == 96 * 64
    assert found.windows == (8, None, None)


def test_a_model_that_transformers_does_not_know_is_refused():
    with pytest.raises(ValueError, match="nothing"):
        counted(config_of("nothing"))
