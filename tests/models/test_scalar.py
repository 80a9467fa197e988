"""Scalar-head models: which checkpoints they can be built from, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    CohereConfig,
    LlamaConfig,
    Qwen3Config,
)

from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.models.scalar import load_scalar_model

CPU = torch.device("cpu")
SIZES = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}


def saved(path: Path, auto_class: type, config_class: type = Qwen3Config, num_labels: int = 1) -> ModelConfig:
    config = config_class(**SIZES, intermediate_size=48, num_key_value_heads=2, num_labels=num_labels)
    auto_class.from_config(config).save_pretrained(path)
    return ModelConfig(path=str(path))


def test_scalar_model_from_a_language_model_has_a_zero_head(tmp_path: Path):
    config = saved(tmp_path, AutoModelForCausalLM)
    model = load_scalar_model(config, CPU)
    body = AutoModelForCausalLM.from_pretrained(tmp_path).base_model.state_dict()
    assert model.base_model.state_dict().keys() == body.keys()
    assert all(torch.equal(value, body[name]) for name, value in model.base_model.state_dict().items())
    assert model.score.weight.shape == (1, 32)
    assert not model.score.weight.any()
    assert not model.training


@pytest.mark.parametrize("auto_class", [AutoModelForSequenceClassification, AutoModelForTokenClassification])
def test_value_head_of_the_checkpoint_is_kept(tmp_path: Path, auto_class: type):
    model = load_scalar_model(saved(tmp_path, auto_class, LlamaConfig), CPU)
    expected = auto_class.from_pretrained(tmp_path).state_dict()
    assert type(model).__name__.startswith("LlamaFor")
    assert model.score.weight.any()
    assert model.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_unsupported_models_are_refused(tmp_path: Path):
    labels = saved(tmp_path / "labels", AutoModelForSequenceClassification, num_labels=3)
    family = saved(tmp_path / "family", AutoModelForCausalLM, CohereConfig)
    cases = [
        (labels, "'.*labels' has 3 labels, but a value or reward model needs one"),
        (family, "transformers has no sequence classification of 'cohere' models"),
        (ModelConfig(path=str(tmp_path / "nowhere")), "there is no folder '.*nowhere'"),
    ]
    for config, complaint in cases:
        with pytest.raises(ConfigError, match=f"critic.path: {complaint}"):
            load_scalar_model(config, CPU, key="critic.path")


def test_an_adapter_is_refused_and_its_base_named(tmp_path: Path):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "/models/base"}')
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="is a LoRA adapter: name a full model, such as '/models/base'"):
        load_scalar_model(ModelConfig(path=str(tmp_path)), CPU)


def test_checkpoint_with_a_missing_layer_is_refused(tmp_path: Path):
    config = saved(tmp_path, AutoModelForCausalLM)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    whole = model.state_dict()
    del whole["model.layers.0.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=whole)
    with pytest.raises(ConfigError, match=r"lacks 1 weights, such as 'model\.layers\.0\.mlp\.up_proj\.weight'"):
        load_scalar_model(config, CPU)
