"""A model with a LoRA adapter, without parameter values, for backends that keep the values in their own layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM

from agentrl.config.model import ModelConfig
from agentrl.models.adapter_folder import Adapter
from agentrl.models.adapters import add_new_adapter, check_peft, fit_saved_adapter

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def adapted_skeleton(
    config: ModelConfig, architecture: PretrainedConfig, base: str, adapter: Adapter | None
) -> PreTrainedModel:
    """Return the model with a new adapter, or with an adapter that has the names, shapes and options of `adapter`.

    Args:
        architecture: the configuration of the base model.
        base: folder of the base model.

    Raises:
        ConfigError: peft is missing, or the adapter does not fit the model.
    """
    check_peft()
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(architecture)
    if adapter is None:
        add_new_adapter(model, config, base)
    else:
        fit_saved_adapter(model, adapter, config, base)
    return model
