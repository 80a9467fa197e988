"""Size and context length of a model, from its configuration alone."""

from __future__ import annotations

import json

import pytest

from agentrl.config.resolve import ModelFacts
from agentrl.errors import ConfigError
from agentrl.models.facts import model_facts
from agentrl.utils import hub

QWEN3_06B = {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "vocab_size": 151936,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
}


def written(folder, content: object) -> str:
    (folder / "config.json").write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize("content", [QWEN3_06B, {"text_config": QWEN3_06B, "vision_config": {"hidden_size": 3}}])
def test_a_known_model_is_estimated_to_within_a_percent(tmp_path, content):
    facts = model_facts(written(tmp_path, content))
    assert facts.context == 40960
    assert facts.num_parameters == pytest.approx(596_049_920, rel=0.01)


def test_experts_are_counted_as_parameters(tmp_path):
    dense = model_facts(written(tmp_path, QWEN3_06B)).num_parameters
    sparse = model_facts(written(tmp_path, {**QWEN3_06B, "num_experts": 8})).num_parameters
    assert sparse - dense == 28 * 3 * 1024 * 3072 * 7


@pytest.mark.parametrize("content", [[], {}, {"hidden_size": "x"}, {"vocab_size": -1}])
def test_file_without_known_keys_has_no_facts(tmp_path, content):
    assert model_facts(written(tmp_path, content)) == ModelFacts()
    assert model_facts(str(tmp_path / "missing")) == ModelFacts()


def test_an_adapter_has_the_facts_of_its_base(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    written(base, QWEN3_06B)
    adapter = {"peft_type": "LORA", "base_model_name_or_path": str(base)}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    assert model_facts(str(tmp_path)).context == 40960


def test_hub_that_does_not_answer_is_a_one_line_error(monkeypatch):
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"model\.path: there is no folder 'nobody/facts'"):
        model_facts("nobody/facts")
