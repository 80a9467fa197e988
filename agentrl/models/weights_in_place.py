"""Replace a model's weights in place, all or nothing."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from agentrl.errors import suggestion


def load_in_place(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy `weights` over the parameters and buffers of the same names; all others keep their values.

    All weights are checked before any is written. Tensors may have other devices and dtypes than the model.

    Raises:
        ValueError: an unknown name, a wrong shape, a name given twice, or two values for tied weights; nothing changed.
    """
    own = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    checked = _checked(own, weights)
    with torch.no_grad():
        for name, tensor in checked.items():
            own[name].copy_(tensor)


def _checked(own: dict[str, Tensor], weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    given: dict[str, Tensor] = {}
    first_name_of: dict[int, str] = {}
    for name, tensor in weights:
        if name not in own:
            raise ValueError(f"the model has no weight '{name}': {suggestion(name, own)}")
        if own[name].shape != tensor.shape:
            raise ValueError(f"weight '{name}' has shape {tuple(tensor.shape)}, expected {tuple(own[name].shape)}")
        if name in given:
            raise ValueError(f"weight '{name}' is given twice")
        twin = first_name_of.setdefault(id(own[name]), name)
        if twin != name and not torch.equal(given[twin], tensor):
            raise ValueError(f"weights '{twin}' and '{name}' are tied, but have two different values")
        given[name] = tensor
    return given
