"""An incomplete model folder is refused in one line, before loading."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.models.folder import check_folder
from agentrl.models.loading import load_model, load_tokenizer

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A model with a tied head, split into several files."""
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=61, num_key_value_heads=2, tie_word_embeddings=True, **SIZES)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model", max_shard_size="20KB")
    return tmp_path / "model"


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_model(ModelConfig(path=str(path)), torch.device("cpu"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_shards_and_a_tied_head_are_loaded(sharded: Path):
    assert len(list(sharded.glob("*.safetensors"))) > 2
    ours = load_model(ModelConfig(path=str(sharded)), torch.device("cpu"))
    theirs = AutoModelForCausalLM.from_pretrained(sharded)
    assert ours.lm_head.weight is ours.model.embed_tokens.weight
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())


def test_a_missing_shard_is_named(sharded: Path):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    assert refusal(sharded) == f"model.path: cannot load '{sharded}': there is no {shard.name}, which its index names"


@pytest.mark.parametrize("num_bytes", [0, 5, 300, 5000])
def test_a_shard_that_is_cut_off_is_named(sharded: Path, num_bytes: int):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:num_bytes])
    assert refusal(sharded).startswith(f"model.path: cannot load '{shard}': it ")


def test_a_pointer_in_place_of_weights_is_named(sharded: Path):
    shard = sorted(sharded.glob("*.safetensors"))[0]
    shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 988097824\n")
    assert f"'{shard}': it is not a safetensors file" in refusal(sharded)


def test_damaged_index_is_named(sharded: Path):
    index = sharded / "model.safetensors.index.json"
    index.write_text(index.read_text()[:50])
    assert f"'{index}': it is not an index of weights" in refusal(sharded)


def test_folder_without_weights_is_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    assert refusal(tmp_path).endswith("there are no weights (model.safetensors or pytorch_model.bin)")


def test_missing_folder_is_reported_to_the_first_caller(tmp_path: Path):
    expected = f"model.path: there is no folder '{tmp_path / 'gone'}'"
    assert refusal(tmp_path / "gone") == expected
    with pytest.raises(ConfigError) as caught:
        load_tokenizer(ModelConfig(path=str(tmp_path / "gone")))
    assert str(caught.value) == expected


def test_pickled_weights_are_not_checked(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"whatever torch makes of it")
    check_folder(tmp_path, "model.path")


def test_unreadable_chat_template_is_named(sharded: Path, tmp_path: Path):
    words = Tokenizer(WordLevel({"a": 0, "?": 1}, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(sharded)
    for file in (tmp_path / "gone.jinja", sharded):
        with pytest.raises(ConfigError, match=r"model\.chat_template: cannot read") as caught:
            load_tokenizer(ModelConfig(path=str(sharded), chat_template=file))
        assert "\n" not in str(caught.value)
