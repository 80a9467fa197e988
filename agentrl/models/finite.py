"""Check that a model's weights are finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check_finite(model: PreTrainedModel) -> None:
    """Reject a model with non-finite weights, before its NaN outputs cause less clear errors.

    If each rank holds a part of the weights, a non-finite weight on one rank makes all ranks raise the error.

    Raises:
        ConfigError: a weight contains NaN or infinity; the message names the weight.
    """
    for name, value in model.named_parameters():
        if value.itemsize > 1 and _num_not_finite(value):
            raise ConfigError.keyless(
                f"the weights of '{model.name_or_path}' are not finite: '{name}' holds NaN or infinity"
            )


def _num_not_finite(value: Tensor) -> int:
    found = (~torch.isfinite(value)).sum()
    return int(found.full_tensor() if isinstance(found, DTensor) else found)
