"""Gradient checkpointing: activations are recomputed in the backward pass instead of stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers.modeling_layers import GradientCheckpointingLayer

from agentrl.errors import ConfigError, Kind

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def enable_checkpointing(model: PreTrainedModel) -> None:
    """Recompute each layer in the backward pass.

    Transformers recomputes only layers in training mode, but training mode also enables dropout. So only the layer
    itself is in training mode. Its submodules stay in evaluation mode, and the layer's dropout rates are set to 0.

    Raises:
        ConfigError: the model does not support gradient checkpointing.
    """
    if not model.supports_gradient_checkpointing:
        raise ConfigError.at(
            "model.enable_gradient_checkpointing",
            Kind.NOT_SUPPORTED,
            f"model.enable_gradient_checkpointing: {type(model).__name__} does not support it",
        )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.training = True
            for name, value in vars(layer).items():
                if "dropout" in name and isinstance(value, float):
                    setattr(layer, name, 0.0)
