"""A model's processor: from images to the tokens that stand for them, and to what a forward is given."""

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
from agentrl.errors import ConfigError
from agentrl.images import ImageError, open_image
from agentrl.models.finite import check_finite
from agentrl.models.hub import is_folder
from agentrl.models.loading import check_whole, quiet_transformers, read_model, tokenizer_source

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, ProcessorMixin

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
TYPES = ("mm_token_type_ids", "token_type_ids")
"""Inputs that tell a model which tokens are an image's."""
_OF_TEXT = ("input_ids", "attention_mask", *TYPES)


class ImageInputs:
    """What a processor makes of images.

    Attributes:
        places: texts that a chat template may write where an image belongs; `tokens` takes the place of theirs.
    """

    def __init__(self, processor: ProcessorMixin) -> None:
        self._processor = processor
        self.places = tuple(
            token for name in ("boi_token", "image_token") if isinstance(token := getattr(processor, name, None), str)
        )
        self._known = lru_cache(maxsize=1024)(self._tokens)  # siblings share their prompt's images

    def tokens(self, place: str, data: bytes) -> Sequence[int]:
        """The ids that stand for an image where the template wrote `place`.

        Raises:
            ImageError: the processor refuses the image.
        """
        return self._known(place, data)

    def _tokens(self, place: str, data: bytes) -> tuple[int, ...]:
        try:
            return tuple(self._processed(place, [data])["input_ids"][0])
        except ImageError:
            raise
        except Exception as error:  # each processor has its own way to refuse one, such as a very thin one
            reason = " ".join(str(error).split())[:200]
            raise ImageError(f"the model's processor refuses it: {reason}") from error

    def inputs(self, place: str, images: Sequence[bytes]) -> dict[str, Tensor]:
        """What a forward takes besides the tokens: pixel values, their grid, and so on."""
        made = self._processed(place * len(images), images)
        return {name: value for name, value in made.items() if name not in _OF_TEXT}

    def types(self, place: str, data: bytes) -> dict[str, Tensor]:
        """[N] of the tokens of an image, by the names of `TYPES` that the model is to be told."""
        made = self._processed(place, [data])
        return {name: torch.tensor(made[name][0]) for name in TYPES if name in made}

    def _processed(self, text: str, images: Sequence[bytes]) -> Mapping[str, Any]:
        """Lists for the text, tensors for the images. Any: each processor has names of its own."""
        made: Mapping[str, Any] = self._processor(
            text=[text],
            images=[open_image(data) for data in images],
            text_kwargs={"add_special_tokens": False},
            images_kwargs={"return_tensors": "pt"},
        )
        return made


def find_image_inputs(config: ModelConfig) -> ImageInputs | None:
    """The processor that is saved beside the weights; None where there is none, or the model takes no images.

    Raises:
        ConfigError: it cannot be read.
    """
    if is_folder(config.path) and not (Path(config.path) / "config.json").is_file():
        return None  # an adapter, or what `load_model` has more to say of
    with quiet_transformers():
        try:
            kind = type(AutoConfig.from_pretrained(config.path, trust_remote_code=config.trust_remote_code))
        except Exception:  # whatever is wrong with it is told where the model is loaded
            return None
    if kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING or not hasattr(kind(), "vision_config"):
        return None
    if is_folder(config.path) and not any((Path(config.path) / name).is_file() for name in PROCESSOR_FILES):
        return None
    return ImageInputs(_load_processor(config))


def load_image_model(config: ModelConfig, device: torch.device, dtype: Dtype | None = None) -> PreTrainedModel:
    """The whole of a vision-language model, to be sampled from.

    Raises:
        ConfigError: there is no such model, it is incomplete or of another kind, a weight is not finite, or an adapter
            is to be added to it.
    """
    if config.lora_adapter_path is not None:
        raise ConfigError(
            "model.lora_adapter_path: a vision-language model is sampled without adapters in this version"
        )
    model, missing = read_model(AutoModelForImageTextToText, config.path, config, dtype or config.dtype, "model.path")
    check_whole(config.path, missing, "model.path")
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
    except Exception as error:  # a missing, torn or foreign file fails in a dozen ways
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"model.path: the image processor of '{config.path}' cannot be loaded: {type(error).__name__}: {reason}"
        ) from error


def _without_torchvision(config: ModelConfig) -> ProcessorMixin:
    """The processor without its video half, which alone cannot do without torchvision; images are read by Pillow."""
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
