"""What the Megatron backend does not support is refused by name, on all ranks."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from megatron_models import in_one_process, make_request
from safetensors.torch import load_file, save_file
from tiny_models import make_samples, save_model
from transformers import AutoModelForCausalLM

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.megatron import platform
from agentrl.backends.megatron.backend import MegatronBackend
from agentrl.errors import ConfigError

pytestmark = pytest.mark.megatron


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama"), "llama")


def test_an_unknown_version_of_megatron_core_is_refused(monkeypatch):
    platform.check_version()
    monkeypatch.setattr(platform, "version", lambda _: "0.20.0")
    with pytest.raises(ConfigError, match=r"needs megatron-core 0\.19\.2, but 0\.20\.0 is installed"):
        platform.check_version()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model_type": "gemma2"}, "models of type 'gemma2', only llama"),
        ({"attention_bias": True}, "'attention_bias: True' in config.json"),
        ({"hidden_act": "gelu"}, "'hidden_act: gelu' in config.json"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "position embeddings of type 'linear'",
        ),
    ],
)
def test_a_model_that_would_be_computed_differently_is_refused(ranks, folder, tmp_path, changes, complaint):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ConfigError, match=rf"model\.path.*actor\.backend=megatron.*{complaint}"):
        MegatronBackend(ranks, make_request(tmp_path), seed=0)


def test_quantized_weights_are_refused(ranks, folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    key = "model.layers.1.mlp.up_proj.weight"
    save_file({**weights, key: weights[key].to(torch.float8_e4m3fn)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=rf"'{key}' has the type float8_e4m3fn: convert the weights to bfloat16"):
        MegatronBackend(ranks, make_request(tmp_path), seed=0)
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"model\.path.*the weights are quantized \('fp8', 'quantization_config'"):
        MegatronBackend(ranks, make_request(tmp_path), seed=0)


@pytest.mark.parametrize(
    ("model", "actor", "complaint"),
    [
        ({"dtype": "float16"}, {}, "float16 gradients underflow"),
        ({}, {"megatron": {"tensor_model_parallel_size": 8}}, "a copy of the model needs 8 processes"),
    ],
)
def test_options_that_are_not_supported_are_refused(ranks, folder, model, actor, complaint):
    with pytest.raises(ConfigError, match=complaint):
        MegatronBackend(ranks, make_request(folder, model=model, **actor), seed=0)


def test_models_with_different_layouts_are_refused(ranks, folder):
    first = MegatronBackend(ranks, make_request(folder, "tp2"), seed=0)
    with pytest.raises(ConfigError, match="must have the same parallel layout"):
        MegatronBackend(ranks, make_request(folder, "pp2"), seed=0)
    asyncio.run(first.close())


@pytest.mark.parametrize("name", ["not finite", "missing", "another shape"])
def test_a_wrong_weight_of_one_rank_is_refused_on_all(ranks, folder, tmp_path, name):
    model = AutoModelForCausalLM.from_pretrained(folder)
    weights = model.state_dict()
    key = "model.layers.1.mlp.up_proj.weight"  # of the last pipeline stage
    if name == "not finite":
        weights[key][-1] = torch.nan
    elif name == "another shape":
        weights[key] = weights[key][:-2]
    else:
        del weights[key]
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(ConfigError, match=rf"{key}"):
        MegatronBackend(ranks, make_request(tmp_path, "pp2"), seed=0)
    asyncio.run(MegatronBackend(ranks, make_request(folder, "pp2"), seed=0).close())  # the ranks go on


def test_a_checkpoint_of_another_backend_or_a_corrupt_one_is_refused(ranks, folder, tmp_path):
    request = make_request(folder, "tp2")
    backend, other = MegatronBackend(ranks, request, seed=0), in_one_process(request)
    asyncio.run(other.save(tmp_path / "torch"))
    with pytest.raises(ConfigError, match="its optimizer state was written by another backend"):
        asyncio.run(backend.load(tmp_path / "torch"))
    asyncio.run(backend.train_step(make_samples(3), PolicyLoss("vanilla")))
    asyncio.run(backend.save(tmp_path / "saved"))
    (file, *_) = sorted((tmp_path / "saved/trainer_state/parts").iterdir())
    content = file.read_bytes()
    file.write_bytes(content[:100])
    with pytest.raises(ConfigError, match=rf"{file.name} in trainer_state/parts is corrupt"):
        asyncio.run(backend.load(tmp_path / "saved"))
    file.write_bytes(content)
    asyncio.run(backend.load(tmp_path / "saved"))
    asyncio.run(backend.close())


def test_a_frozen_model_reads_a_checkpoint_of_the_torch_backend(ranks, folder, tmp_path):
    request = make_request(folder, "tp2")
    other = in_one_process(request)
    asyncio.run(other.train_step(make_samples(3), PolicyLoss("vanilla")))
    asyncio.run(other.save(tmp_path / "torch"))
    reference = MegatronBackend(ranks, replace(request, trainable=False), seed=0)
    asyncio.run(reference.load(tmp_path / "torch"))
    weights = dict(reference.weights())
    assert all(torch.equal(weights[name], value) for name, value in other.weights())
    asyncio.run(reference.close())
