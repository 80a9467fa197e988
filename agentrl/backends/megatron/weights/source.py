"""The Hugging Face folder that a model comes from: configuration, tokenizer, and weights that are read in parts."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import AutoConfig, GenerationConfig

from agentrl.backends.fsdp.checkpoint import failing_together
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.megatron.weights.saved_boxes import SavedBoxes, complete_weights
from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError, Kind
from agentrl.models.folder import check_folder, is_folder, weight_files
from agentrl.models.loading import adapter_of, load_tokenizer, quiet_transformers, tokenizer_source
from agentrl.models.scalar import HEAD, name_scalar_class, scalar_kind
from agentrl.utils.hub import hub_folder

if TYPE_CHECKING:
    from transformers import PretrainedConfig


_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_COPIES = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}
"""Name of a weight in a layer for multi-token prediction -> the model's weight of which it is a copy."""


class Source:
    """A model's folder. The first process of each node downloads a hub model.

    All processes create this object together.

    Attributes:
        config: the model's configuration.
        dtype: the data type of the model's weights.
        adapter: the saved adapter that training continues from; None if there is none.
        base: folder or hub name of the base model, without adapter.
        head_bias: whether a head that outputs one number has a bias.

    Args:
        value_head: whether the model outputs one number per token.

    Raises:
        ConfigError: on all processes, if on one of them the folder is missing or incomplete, cannot be downloaded, or
            has weights that cannot be trained.
    """

    def __init__(self, ranks: Ranks, model: ModelConfig, key: str, *, value_head: bool) -> None:
        self._key, self._value_head = key, value_head
        with failing_together(ranks.control):
            self.adapter = adapter_of(model, key)
            self.base = self.adapter.base if self.adapter and model.lora_adapter_path is None else model.path
            if not is_folder(self.base) and os.environ.get("LOCAL_RANK", "0") == "0":  # once per node
                hub_folder(self.base, key)
        with failing_together(ranks.control):
            self._read(model)

    def _read(self, model: ModelConfig) -> None:
        base, key = self.base, self._key
        self._folder = Path(base) if is_folder(base) else hub_folder(base, key, downloaded=True)
        check_folder(self._folder, key)
        self.config: PretrainedConfig = AutoConfig.from_pretrained(self._folder)
        self.dtype = _dtype(model, self.config)
        self._tokenizer = load_tokenizer(self._downloaded(model, tokenizer_source(model)))
        self._kind = scalar_kind(self._downloaded(model, model.path), key) if self._value_head else None
        self.head_bias = self._kind == "ForTokenClassification"
        if self._value_head:
            name_scalar_class(self.config, self._kind)

    def _downloaded(self, model: ModelConfig, source: str) -> ModelConfig:
        """Return `model`, but with the downloaded folder as its path if `source` was downloaded."""
        if source != self.base or is_folder(source):
            return model
        return model.model_copy(update={"path": str(self._folder)})

    def weights(self) -> SavedBoxes:
        """Return the weights of the folder."""
        return weights_of(self._folder, self._key)

    def new_weights(self, saved: SavedBoxes) -> tuple[str, ...]:
        """Return the names of weights that `saved` lacks and that may start at 0, see `load_scalar_model`."""
        name = f"{HEAD}.weight"
        is_new = self._value_head and self._kind is None and saved.shape(name) is None
        return (name,) if is_new else ()

    def with_layers_ahead(
        self, weights: Iterator[tuple[str, Tensor]], names: Collection[str]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield `weights`, and the missing weights of layers for multi-token prediction, one at a time.

        These layers follow the layers of the model. Transformers does not save them. If they are not trained, they stay
        as they are in the folder. If they are trained, their copies of embedding and head equal the embedding and head
        of the model.

        Args:
            names: names of `weights`.
        """
        saved = self.weights() if num_layers_ahead(self.config) else SavedBoxes({})
        rest = {name for name in saved.names() if self._is_ahead(name)} - {*names}
        copies = {name: original for name in rest if (original := _original(name, names))}
        for name, value in weights:
            yield name, value
            yield from ((copy, value.clone()) for copy, original in copies.items() if original == name)
        yield from ((name, saved.complete(name)) for name in saved.names() if name in rest - copies.keys())

    def _is_ahead(self, name: str) -> bool:
        found = _LAYER.match(name)
        return found is not None and 0 <= int(found[1]) - self.config.num_hidden_layers < num_layers_ahead(self.config)

    def write_rest(self, folder: Path, *, complete: bool) -> None:
        """Write the tokenizer to `folder`.

        If `complete` (the checkpoint is not only a LoRA adapter), also write the model's configuration, and for a
        language model also the generation configuration.
        """
        with quiet_transformers():
            if complete:
                self.config.save_pretrained(folder)
            if complete and not self._value_head:
                _generation_config(self._folder, self.config).save_pretrained(folder)
            if self._tokenizer is not None:
                self._tokenizer.save_pretrained(folder)


def num_layers_ahead(config: PretrainedConfig) -> int:
    """Return a model's number of layers for multi-token prediction."""
    return getattr(config, "num_nextn_predict_layers", None) or 0


def _original(name: str, names: Collection[str]) -> str | None:
    """Return the weight of which `name` is a copy; None if `name` is no copy, or if `names` lacks its layer."""
    found = _LAYER.match(name)
    if found is None or f"{found[0]}eh_proj.weight" not in names:
        return None
    original = _COPIES.get(name[found.end() :])
    return original if original is None or original in names else _COPIES["embed_tokens.weight"]  # tied


def weights_of(folder: Path, key: str) -> SavedBoxes:
    """Return the weights of a model's folder.

    Raises:
        ConfigError: the folder is incomplete, or its weights are not in safetensors files.
    """
    check_folder(folder, key)
    files = weight_files(folder, key)
    if other := [file.name for file in files if file.suffix != ".safetensors"]:
        text = f"{key}: `actor.backend=megatron` reads safetensors files, not '{other[0]}': convert it"
        raise ConfigError.at(key, Kind.NOT_SUPPORTED, text)
    return complete_weights(files)


def _dtype(model: ModelConfig, config: PretrainedConfig) -> torch.dtype:
    found = getattr(config, "dtype", None) if model.dtype == "auto" else getattr(torch, model.dtype)
    if found == torch.float16:
        text = "float16 gradients underflow: set `model.dtype` to bfloat16 or float32"
        raise ConfigError.at("model.dtype", Kind.NOT_SUPPORTED, text)
    return found or torch.float32


def _generation_config(folder: Path, config: PretrainedConfig) -> GenerationConfig:
    if (folder / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(folder)
    return GenerationConfig.from_model_config(config)
