"""Merge an adapter into its base model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any, cast

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
    """Return the base model with the adapter `config.path` merged into its weights, W + (alpha / r) B A.

    Args:
        dtype: dtype of the result. The sum is computed in float32, because bfloat16 would lose most of a small update.

    Raises:
        ConfigError: the base is missing, or the adapter does not fit it.
    """
    check_peft()
    from peft import PeftModel

    adapter = find_adapter(config.path)
    assert adapter  # the caller has checked it
    adapter.weights_file()
    base_config = config.model_copy(update={"path": adapter.base})
    base = load_model(base_config, torch.device("cpu"), "float32", key=f"base of '{config.path}'")
    try:
        model = PeftModel.from_pretrained(base, config.path)
    except (RuntimeError, ValueError, OSError) as error:
        raise ConfigError.keyless(
            f"'{config.path}' does not fit its base: {' '.join(str(error).split())[:200]}"
        ) from error
    merged = cast("PreTrainedModel", model.merge_and_unload())
    return merged.to(dtype)


def merged_weights(
    model: nn.Module, complete: Iterable[tuple[str, Tensor]] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield the merged weights of the layers with an adapter, under the base's names; the model is not changed.

    A merged weight is W + (alpha / r) B A, computed and returned in float32. One layer is merged at a time.

    Args:
        complete: the weights of `adapted_names`, in that order, if `model` holds only parts of the weights.
    """
    values = iter(complete or ())
    for name, layer in _adapted_layers(model):
        merged = deepcopy(layer)
        if complete is not None:
            own_values = {own: next(values)[1] for own, _ in layer.named_parameters()}
            merged.load_state_dict(own_values, assign=True)
        merged.float().merge()
        for own, value in merged.get_base_layer().named_parameters():
            yield f"{name}.{own}", value.detach()


def adapted_names(model: nn.Module) -> list[str]:
    """Return the names of all parameters of layers with an adapter."""
    return [f"{name}.{own}" for name, layer in _adapted_layers(model) for own, _ in layer.named_parameters()]


def _adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:  # Any: a layer of peft, which is optional
    from peft.tuners.tuners_utils import BaseTunerLayer

    yield from ((name, layer) for name, layer in model.named_modules() if isinstance(layer, BaseTunerLayer))
