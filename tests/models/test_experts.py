"""Expert counts and layers, read from a model configuration without the weights."""

from __future__ import annotations

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.models.experts import routed_shape

SMALL = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 3}


def saved(folder, family: str, **sizes: int) -> ModelConfig:
    config = AutoConfig.for_model(family, **SMALL, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return ModelConfig(path=str(folder))


def test_routed_shape_is_layers_and_experts_per_token(tmp_path):
    mixture = saved(tmp_path, "qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8)
    assert routed_shape(mixture) == (3, 2)


def test_a_dense_model_is_refused_by_name(tmp_path):
    dense = saved(tmp_path, "qwen3")
    with pytest.raises(ConfigError, match=rf"needs a mixture-of-experts model: '{tmp_path}' \(qwen3\) has no experts"):
        routed_shape(dense)
    with pytest.raises(ConfigError, match=r"actor\.routed_experts' needs a mixture-of-experts model"):
        routed_shape(dense, "actor")
