"""The Hugging Face folder that a model comes from: configuration, tokenizer, and weights that are read in parts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig, GenerationConfig

from agentrl.backends.megatron.weights.saved_boxes import SavedBoxes, complete_weights
from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError, Kind
from agentrl.models.folder import check_folder, is_folder, weight_files
from agentrl.models.loading import adapter_of, load_tokenizer, quiet_transformers

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class Source:
    """A model's folder.

    Attributes:
        config: its configuration.
        dtype: the data type of its weights.
        adapter: the saved adapter that training continues from; None if there is none.
        base: folder of the base model, without adapter.

    Raises:
        ConfigError: the folder is missing or incomplete, or its weights cannot be trained.
    """

    def __init__(self, model: ModelConfig, key: str) -> None:
        self.adapter = adapter_of(model, key)
        self.base = self.adapter.base if self.adapter and model.lora_adapter_path is None else model.path
        self._folder, self._key = Path(self.base), key
        if not is_folder(self.base):
            text = f"{key}: `actor.backend=megatron` reads a local folder, not '{self.base}' on the hub: download it"
            raise ConfigError.at(key, Kind.NOT_SUPPORTED, text)
        check_folder(self._folder, key)
        self.config: PretrainedConfig = AutoConfig.from_pretrained(self._folder)
        self.dtype = _dtype(model, self.config)
        self._tokenizer = load_tokenizer(model)

    def weights(self) -> SavedBoxes:
        """Return the weights of the folder."""
        return weights_of(self._folder, self._key)

    def write_rest(self, folder: Path, *, complete: bool) -> None:
        """Write the tokenizer to `folder`; for a `complete` model also the configurations."""
        with quiet_transformers():
            if complete:
                self.config.save_pretrained(folder)
                _generation_config(self._folder, self.config).save_pretrained(folder)
            if self._tokenizer is not None:
                self._tokenizer.save_pretrained(folder)


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
