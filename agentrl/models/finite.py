"""Check that a model's weights are finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check_finite(model: PreTrainedModel) -> None:
    """Reject a model with non-finite weights, before its NaN outputs cause less clear errors.

    Raises:
        ConfigError: names a weight that contains NaN or infinity.
    """
    for name, value in model.named_parameters():
        if value.itemsize > 1 and not torch.isfinite(value).all():
            raise ConfigError(f"the weights of '{model.name_or_path}' are not finite: '{name}' holds NaN or infinity")
