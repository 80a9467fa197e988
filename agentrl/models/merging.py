"""An adapter and its base as one model."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.adapters import check_peft
from agentrl.models.loading import load_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def merge_adapter(config: ModelConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model whose weights are those of the base with the adapter `config.path` added in, W + (alpha / r) B A.

    Args:
        dtype: of the answer. The sum is taken in float32; rounded to bfloat16, most of a small update is lost.

    Raises:
        ConfigError: the base is not there, or the adapter does not fit it.
    """
    check_peft()
    from peft import PeftModel

    adapter = find_adapter(config.path)
    assert adapter  # who calls has looked
    adapter.weights_file()
    base_config = config.model_copy(update={"path": adapter.base})
    base = load_model(base_config, torch.device("cpu"), "float32", key=f"base of '{config.path}'")
    try:
        model = PeftModel.from_pretrained(base, config.path)
    except (RuntimeError, ValueError, OSError) as error:
        raise ConfigError(f"'{config.path}' does not fit its base: {' '.join(str(error).split())[:200]}") from error
    merged = cast("PreTrainedModel", model.merge_and_unload())
    return merged.to(dtype)


def merged_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What the adapter on `model` changes, under the base's names, with it added in; both stay as they are.

    W + (alpha / r) B A, summed in float32 and left in it; a layer at a time.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, layer in model.named_modules():
        if isinstance(layer, BaseTunerLayer):
            merged = deepcopy(layer).float()
            merged.merge()
            for own, value in merged.get_base_layer().named_parameters():
                yield f"{name}.{own}", value.detach()
