"""A model's image processor: converts images to placeholder tokens and to inputs of the forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer
from transformers.image_processing_base import ImageProcessingMixin
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from agentrl.config.model import Dtype, ModelConfig
from agentrl.errors import ConfigError, Kind
from agentrl.models.finite import check_finite
from agentrl.models.folder import is_folder
from agentrl.models.loading import check_complete, quiet_transformers, read_model, tokenizer_source
from agentrl.utils.images import ImageError, open_image

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, ProcessorMixin

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
TYPES = ("mm_token_type_ids", "token_type_ids")
"""Inputs that mark which tokens belong to an image."""
_OF_TEXT = ("input_ids", "attention_mask", *TYPES)


class ImageInputs:
    """Converts images with the model's processor.

    Attributes:
        places: texts that a chat template may write for an image; `tokens` returns the tokens that replace this text.
    """

    def __init__(self, processor: ProcessorMixin) -> None:
        self._processor = processor
        self.places = tuple(
            token for name in ("boi_token", "image_token") if isinstance(token := getattr(processor, name, None), str)
        )
        self._known = lru_cache(maxsize=1024)(self._tokens)  # rollouts of the same task share their prompt's images

    def tokens(self, place: str, data: bytes) -> Sequence[int]:
        """Return the token ids of an image; they replace `place`, which the template wrote.

        Raises:
            ImageError: the processor rejects the image.
        """
        return self._known(place, data)

    def _tokens(self, place: str, data: bytes) -> tuple[int, ...]:
        try:
            return tuple(self._processed(place, [data])["input_ids"][0])
        except ImageError:
            raise
        except Exception as error:  # each processor raises its own errors, for example for a very thin image
            reason = " ".join(str(error).split())[:200]
            raise ImageError(f"the model's processor refuses it: {reason}") from error

    def inputs(self, place: str, images: Sequence[bytes]) -> dict[str, Tensor]:
        """Return the inputs of the forward pass besides tokens: pixel values, their grid, and so on."""
        made = self._processed(place * len(images), images)
        return {name: value for name, value in made.items() if name not in _OF_TEXT}

    def types(self, place: str, data: bytes) -> dict[str, Tensor]:
        """Return the [N] types of an image's N tokens, under each name in `TYPES` that the model uses."""
        made = self._processed(place, [data])
        return {name: torch.tensor(made[name][0]) for name in TYPES if name in made}

    def _processed(self, text: str, images: Sequence[bytes]) -> Mapping[str, Any]:
        """Return lists for the text and tensors for the images. Any: the names depend on the processor."""
        made: Mapping[str, Any] = self._processor(
            text=[text],
            images=[open_image(data) for data in images],
            text_kwargs={"add_special_tokens": False},
            images_kwargs={"return_tensors": "pt"},
        )
        return made


def find_image_inputs(config: ModelConfig) -> ImageInputs | None:
    """Load the processor saved with the weights; None without such a processor, or if the model takes no images.

    Raises:
        ConfigError: the processor cannot be read.
    """
    if is_folder(config.path) and not (Path(config.path) / "config.json").is_file():
        return None  # an adapter, or an invalid folder, for which `load_model` raises a detailed error
    with quiet_transformers():
        try:
            kind = type(AutoConfig.from_pretrained(config.path, trust_remote_code=config.trust_remote_code))
        except Exception:  # `load_model` reports this error
            return None
    if kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING or not hasattr(kind(), "vision_config"):
        return None
    if is_folder(config.path) and not any((Path(config.path) / name).is_file() for name in PROCESSOR_FILES):
        return None
    return ImageInputs(_load_processor(config))


def load_image_model(config: ModelConfig, device: torch.device, dtype: Dtype | None = None) -> PreTrainedModel:
    """Load a complete vision-language model, for sampling.

    Raises:
        ConfigError: there is no such model, it is incomplete or of another kind, a weight is not finite, or an adapter
            is configured.
    """
    if config.lora_adapter_path is not None:
        raise ConfigError.at(
            "model.lora_adapter_path",
            Kind.NOT_SUPPORTED,
            "model.lora_adapter_path: adapters are not supported for vision-language models",
        )
    model, missing = read_model(AutoModelForImageTextToText, config.path, config, dtype or config.dtype, "model.path")
    check_complete(config.path, missing, "model.path")
    model.eval().to(device)
    check_finite(model)
    return model


def _load_processor(config: ModelConfig) -> ProcessorMixin:
    try:
        with quiet_transformers():
            try:
                return AutoProcessor.from_pretrained(config.path, trust_remote_code=config.trust_remote_code)
            except ImportError:
                return _without_torchvision(config)
    except Exception as error:  # missing, truncated or foreign files raise many kinds of errors
        reason = " ".join(str(error).split())[:200]
        raise ConfigError.at(
            "model.path",
            Kind.WRONG_VALUE,
            f"model.path: the image processor of '{config.path}' cannot be loaded: {type(error).__name__}: {reason}",
        ) from error


def _without_torchvision(config: ModelConfig) -> ProcessorMixin:
    """Load the processor without its video part, the only part that needs torchvision; Pillow reads the images."""
    settings, _ = ImageProcessingMixin.get_image_processor_dict(config.path)
    name = str(settings["image_processor_type"]).removesuffix("Fast").removesuffix("Pil")
    image_processor = getattr(transformers, f"{name}Pil").from_pretrained(config.path)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_source(config), trust_remote_code=config.trust_remote_code)
    base = getattr(transformers, str(settings["processor_class"]))

    def accept_none(self: ProcessorMixin, name: str, argument: object) -> object:
        return None if argument is None else base.check_argument_for_proper_class(self, name, argument)

    kind = type(base.__name__, (base,), {"check_argument_for_proper_class": accept_none})
    processor: ProcessorMixin = kind(image_processor=image_processor, tokenizer=tokenizer)
    return processor
