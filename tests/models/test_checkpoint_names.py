"""The weight stream for servers equals the output of save_pretrained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_models import FAMILIES, WITHOUT_KV, tiny_model
from safetensors.torch import load_file

from agentrl.backends.torch.freezing import changing_weights
from agentrl.models.checkpoint_names import checkpoint_weights
from agentrl.models.folder import checkpoint_shapes


@pytest.mark.parametrize("family", [*FAMILIES, *WITHOUT_KV])
@pytest.mark.filterwarnings("ignore")  # warnings of families without their own kernels
def test_the_stream_is_the_saved_checkpoint(family: str, tmp_path: Path):
    model = tiny_model(family)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    streamed = list(checkpoint_weights(model, changing_weights(model)))
    assert len(streamed) == len(dict(streamed))
    assert dict(streamed).keys() == saved.keys()
    assert all(tensor.dtype == saved[name].dtype and torch.equal(tensor, saved[name]) for name, tensor in streamed)
    assert {name: tuple(tensor.shape) for name, tensor in streamed} == checkpoint_shapes(tmp_path, "model.path")


def test_a_loaded_model_keeps_the_names_it_was_loaded_from(tmp_path: Path):
    original = tiny_model("mixtral")
    original.save_pretrained(tmp_path)
    model = type(original).from_pretrained(tmp_path)
    assert (
        dict(checkpoint_weights(model, changing_weights(model))).keys()
        == load_file(tmp_path / "model.safetensors").keys()
    )


def test_checkpoint_is_converted_layer_by_layer():
    model = tiny_model("qwen3_moe")
    read = []

    def weights():
        for name, value in changing_weights(model):
            read.append(name)
            yield name, value

    for name, _ in checkpoint_weights(model, weights()):
        if name.startswith("model.layers.0."):
            assert not any(one.startswith("model.layers.1.") for one in read[:-1])
