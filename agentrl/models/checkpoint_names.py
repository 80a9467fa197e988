"""Convert a model's weights to the format of its checkpoint: other names, and a separate tensor for each expert."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LAYER = re.compile(r".*?\.\d+(?=\.)")


def checkpoint_weights(model: PreTrainedModel, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield `weights` of `model` as `model.save_pretrained` would write them, converted layer by layer.

    Each tensor of a checkpoint depends on one layer only. Most of the yielded tensors are views.
    """
    for _, members in groupby(weights, lambda named: _layer(named[0])):
        yield from revert_weight_conversion(model, dict(members)).items()


def _layer(name: str) -> str:
    """Return the layer of a weight: model.layers.0.mlp.experts.down_proj -> model.layers.0.

    A name outside any layer is returned unchanged.
    """
    found = _LAYER.match(name)
    return found[0] if found else name
