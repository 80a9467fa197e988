"""Model folders that are missing, incomplete, or lack what a conversation needs."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def truncated(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def a_shard_missing(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"model.embed_tokens.weight": 1, "model.norm.weight": 2}
    names = {name: f"model-0000{shard}-of-00002.safetensors" for name, shard in shards.items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def without_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def a_torn_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def a_torn_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def a_foreign_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": 3}')


def not_finite(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    next(iter(weights.values())).fill_(math.nan)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def a_run(folder: Path) -> None:
    inside = folder / "checkpoints/latest"
    inside.mkdir(parents=True)
    for file in folder.glob("*.*"):
        file.rename(inside / file.name)


def without_template(folder: Path) -> None:
    for file in folder.glob("*.jinja"):
        file.unlink()


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (without_weights, "model.path: cannot load '{model}': there are no weights (model.safetensors"),
        (truncated, "model.path: cannot load '{model}/model.safetensors': it has 5000 of "),
        (a_shard_missing, "model.path: cannot load '{model}': there is no model-00002-of-00002.safetensors"),
        (without_config, "model.path: cannot load '{model}': there is no config.json"),
        (without_tokenizer, "model.path '{model}' has no tokenizer: set model.tokenizer_path"),
        (a_torn_config, "model.path: cannot read '{model}/config.json': not JSON: Expecting value"),
        (a_torn_tokenizer, "model.path: cannot read '{model}/tokenizer.json': not JSON: Expecting property name"),
        (a_foreign_tokenizer, "model.path: the tokenizer of '{model}' cannot be read: "),
        (not_finite, "the weights of '{model}' are not finite: "),
        (a_run, "model.path: '{model}' is a run's folder: use its model, {model}/checkpoints/latest"),
        (without_template, "tokenizer '{model}' has no chat template: set model.chat_template"),
    ],
)
def test_incomplete_model_folder_is_refused(bad, spoil, complaint):
    folder = bad.folder / "model"
    shutil.copytree(bad.model, folder)
    spoil(folder)
    torch_engine = ("rollout.engine=torch", "rollout.script_path=null")
    assert complaint.format(model=folder) in bad.refused(f"model.path={folder}", *torch_engine)


def test_missing_folder_is_refused(bad):
    assert bad.refused("model.path=/nowhere/at/all") == "model.path: there is no folder '/nowhere/at/all'"


def test_a_template_that_does_not_parse(bad):
    file = bad.write("broken.jinja", "{% for message in messages %}{{ message.content ")
    assert "the chat template refuses" in bad.refused(f"model.chat_template={file}")


def test_unknown_device_or_dtype_is_refused(bad):
    assert bad.refused("actor.device=tpu").startswith("actor.device 'tpu' cannot be used: ")
    assert "'model.dtype': input should be 'auto', 'float32'" in bad.refused("model.dtype=float12")
