from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import make_samples, save_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.torch import checkpoint
from agentrl.backends.torch.backend import TorchBackend, load_torch_backend
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError


def load(path: Path | str, device: str = "cpu", **model: object) -> TorchBackend:
    config = ActorConfig(device=device)
    return load_torch_backend(ModelConfig(path=str(path), **model), config, total_updates=1, seed=0)


def assert_refused(match: str, path: Path | str, **options: object) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        load(path, **options)
    assert "\n" not in str(caught.value)


def test_missing_model_folder_is_named(tmp_path: Path):
    assert_refused("model.path: there is no folder", tmp_path / "nowhere")
    assert_refused("model.path: there is no folder", "./outputs/nowhere")


def test_unreachable_hub_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert_refused("model.path: there is no folder 'nobody/nothing', and no model", "nobody/nothing")


@pytest.mark.parametrize("num_bytes", [0, 20, 5000])
def test_partially_written_weights_are_refused(tmp_path: Path, num_bytes: int):
    weights = save_model(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:num_bytes])
    assert_refused("model.path: cannot load", tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_missing_model_file_is_named(tmp_path: Path, name: str):
    (save_model(tmp_path) / name).unlink()
    assert_refused("model.path: cannot load", tmp_path)


def test_missing_and_misshapen_weights(tmp_path: Path):
    file = save_model(tmp_path) / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    assert_refused("lacks 1 weights, such as 'model.layers.1.mlp.up_proj.weight'", tmp_path)
    weights["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 3)
    save_file(weights, file, metadata={"format": "pt"})
    assert_refused("model.path: cannot load", tmp_path)


def test_unusable_device_and_attention_are_refused(tmp_path: Path):
    save_model(tmp_path)
    assert_refused(r"actor\.device 'gpu'", tmp_path, device="gpu")
    assert_refused("sdqa", tmp_path, attn_implementation="sdqa")


def test_the_tokenizer_is_saved_with_its_template(tmp_path: Path):
    save_model(tmp_path / "model")
    words = Tokenizer(WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(tmp_path / "model")
    (tmp_path / "template.jinja").write_text("{{ messages }}")
    backend = load(tmp_path / "model", chat_template=tmp_path / "template.jinja")
    asyncio.run(backend.save(tmp_path / "saved"))
    saved = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert saved.get_vocab() == {"a": 0, "b": 1, "?": 2}
    assert saved.chat_template == "{{ messages }}"


def test_a_model_without_tokenizer_is_saved_without(tmp_path: Path):
    save_model(tmp_path / "model")
    asyncio.run(load(tmp_path / "model").save(tmp_path / "saved"))
    assert not list((tmp_path / "saved").glob("token*"))
    assert_refused("model.tokenizer_path: cannot load", tmp_path / "model", tokenizer_path=str(tmp_path / "model"))


@pytest.mark.slow
def test_saving_again_replaces_the_old_checkpoint(tmp_path: Path):
    backend = load(save_model(tmp_path / "model"))
    asyncio.run(backend.save(tmp_path / "step"))
    asyncio.run(backend.train_step(make_samples(2), PolicyLoss("sft")))
    asyncio.run(backend.save(tmp_path / "step"))
    fresh = load(tmp_path / "model")
    asyncio.run(fresh.load(tmp_path / "step"))
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(fresh.weights(), backend.weights(), strict=True))


def test_kill_leaves_only_complete_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    backend = load(save_model(tmp_path / "model"))
    monkeypatch.setattr(checkpoint.torch, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save_checkpoint(tmp_path / "step", backend.model, None, {})
    assert not (tmp_path / "step").exists()
    monkeypatch.undo()
    asyncio.run(backend.save(tmp_path / "step"))  # files left by the kill do not prevent saving
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["model", "step"]


def test_folder_without_state_is_not_a_checkpoint(tmp_path: Path):
    backend = load(save_model(tmp_path / "model"))
    with pytest.raises(ConfigError, match="not a checkpoint"):
        asyncio.run(backend.load(tmp_path / "model"))


def test_state_is_read_without_running_code(tmp_path: Path):
    backend = load(save_model(tmp_path / "model"))
    asyncio.run(backend.save(tmp_path / "step"))
    torch.save({"optimizer": shutil.rmtree}, tmp_path / "step" / checkpoint.STATE_FILE)
    with pytest.raises(ConfigError, match="Weights only load failed"):
        asyncio.run(backend.load(tmp_path / "step"))
