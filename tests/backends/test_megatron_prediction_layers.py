"""Layers for multi-token prediction are not trained, but stay in every checkpoint."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch
from megatron_models import in_one_process, make_request
from rank_processes import ROUNDING
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import make_samples, save_model
from torch import Tensor

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.megatron.backend import MegatronBackend

pytestmark = pytest.mark.megatron

LAYER = "model.layers.2."  # the models have the layers 0 and 1


def save_with_prediction_layer(folder: Path, family: str) -> dict[str, Tensor]:
    """Save a model in two files, the second with the layer; return the weights of the layer."""
    save_model(folder, family)
    weights = load_file(folder / "model.safetensors")
    draw = torch.Generator().manual_seed(0)
    layer = {
        name.replace("model.layers.1.", LAYER): torch.randn(value.shape, generator=draw, dtype=value.dtype)
        for name, value in weights.items()
        if "layers.1." in name
    }
    layer[f"{LAYER}eh_proj.weight"] = torch.randn(32, 64, generator=draw).bfloat16()
    layer[f"{LAYER}enorm.weight"] = torch.full((32,), torch.nan)  # whatever the values are
    files = {"model-00001-of-00002.safetensors": weights, "model-00002-of-00002.safetensors": layer}
    for name, members in files.items():
        save_file(members, folder / name, metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    places = {weight: name for name, members in files.items() for weight in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    return layer


def weights_in(folder: Path) -> dict[str, Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layout", ["tp2", "pp2", "ep2"])
@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_a_checkpoint_has_the_layers_of_its_source(ranks, tmp_path, family, layout):
    source, first, second = tmp_path / "source", tmp_path / "first", tmp_path / "second"
    layer = save_with_prediction_layer(source, family)
    for path, out in ((source, first), (first, second)):  # the second run starts from the first checkpoint
        backend = MegatronBackend(ranks, make_request(path, layout), seed=0)
        asyncio.run(backend.train_step(make_samples(3), PolicyLoss("vanilla")))
        asyncio.run(backend.save(out))
        published = dict(backend.checkpoint_weights())
        asyncio.run(backend.close())
        saved = weights_in(out)
        assert saved.keys() == published.keys() | layer.keys()
        assert not published.keys() & layer.keys()
        for name, value in layer.items():
            assert saved[name].dtype == value.dtype
            torch.testing.assert_close(saved[name], value, rtol=0, atol=0, equal_nan=True)
        assert all(torch.equal(saved[name], value) for name, value in published.items())
        assert json.loads((out / "config.json").read_text())["num_nextn_predict_layers"] == 1


def test_a_model_with_such_a_layer_computes_the_same(ranks, tmp_path):
    save_with_prediction_layer(tmp_path / "with", "deepseek_v3")
    save_model(tmp_path / "without", "deepseek_v3")
    backend = MegatronBackend(ranks, make_request(tmp_path / "with", "tp2"), seed=0)
    alone = in_one_process(make_request(tmp_path / "without"))
    found, expected = (asyncio.run(each.score(make_samples(3))).logprobs for each in (backend, alone))
    for own, theirs in zip(found, expected, strict=True):
        assert own == pytest.approx(theirs, abs=2 * ROUNDING)
    asyncio.run(backend.close())


def test_the_layers_are_read_one_weight_at_a_time(ranks, tmp_path, monkeypatch):
    save_with_prediction_layer(tmp_path / "source", "deepseek_v3")
    backend = MegatronBackend(ranks, make_request(tmp_path / "source", "tp2"), seed=0)
    monkeypatch.setattr("agentrl.backends.fsdp.checkpoint.FILE_BYTES", 4000)
    asyncio.run(backend.save(tmp_path / "saved"))
    asyncio.run(backend.close())
    index = json.loads((tmp_path / "saved/model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / "saved" / file, "pt") as opened:
            assert name in opened.keys()  # noqa: SIM118  # no dictionary
    assert sum(name.startswith(LAYER) for name in index["weight_map"]) > 10
