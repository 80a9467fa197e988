"""From the weights of a model in memory to those of its saved checkpoint: other names, and experts apart."""

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
    """`weights` of `model` as `model.save_pretrained` would write them, converted a layer at a time.

    What one tensor of a checkpoint is made of stands in one layer; most of what comes out are views.
    """
    for _, members in groupby(weights, lambda named: _layer(named[0])):
        yield from revert_weight_conversion(model, dict(members)).items()


def _layer(name: str) -> str:
    """model.layers.0.mlp.experts.down_proj -> model.layers.0; names outside any layer stand alone."""
    found = _LAYER.match(name)
    return found[0] if found else name
