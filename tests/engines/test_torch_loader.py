"""Loading an embedded engine from a configuration."""

from __future__ import annotations

import asyncio

import pytest
import torch
from engine_models import tiny_model
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from agentrl.config.model import ModelConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.engines.base import GenerateRequest, SamplingParams
from agentrl.engines.torch.loader import load_torch_engine
from agentrl.errors import ConfigError


def save_model(path, family: str = "qwen3") -> ModelConfig:
    tiny_model(family).save_pretrained(path)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(path)
    return ModelConfig(path=str(path))


def test_a_saved_model_is_sampled_from(tmp_path):
    engine = load_torch_engine(save_model(tmp_path), RolloutConfig(device="cpu", deterministic=True), 64)

    async def run():
        try:
            free = await engine.generate(GenerateRequest([1, 2, 3], SamplingParams(seed=1, max_new_tokens=5)))
            stop = f"w{free.token_ids[2]}"
            params = SamplingParams(seed=1, max_new_tokens=5, stop=(stop,))
            return free, await engine.generate(GenerateRequest([1, 2, 3], params))
        finally:
            await engine.close()

    free, stopped = asyncio.run(run())
    assert engine.kv_reuse
    assert engine.max_sequence_length == 64
    assert stopped.token_ids == free.token_ids[:3]


def test_rollout_dtype_overrides_the_model_dtype(tmp_path):
    engine = load_torch_engine(save_model(tmp_path), RolloutConfig(device="cpu", dtype="bfloat16"), 64)
    assert engine.model.dtype is torch.bfloat16
    assert engine.kv_reuse


def test_an_encoder_decoder_is_refused(tmp_path):
    config = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="encoder-decoder"):
        load_torch_engine(ModelConfig(path=str(tmp_path)), RolloutConfig(), 64)


def test_a_missing_model_a_short_context_and_a_missing_device_are_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        load_torch_engine(ModelConfig(path=str(tmp_path / "nowhere")), RolloutConfig(), 64)
    with pytest.raises(ConfigError, match=r"context of 256 tokens is shorter than .* 1000"):
        load_torch_engine(save_model(tmp_path), RolloutConfig(device="cpu"), 1000)
    with pytest.raises(ConfigError, match=r"rollout.device 'abacus'"):
        load_torch_engine(save_model(tmp_path), RolloutConfig(device="abacus"), 64)
