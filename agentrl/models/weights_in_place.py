"""Replace a model's weights in place, all or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from agentrl.errors import suggestion


@runtime_checkable
class StreamedWeights(Protocol):
    """Weights of which only a part is in memory at a time. Iterating yields copies that stay valid."""

    def shapes(self) -> Mapping[str, torch.Size]:
        """Return the shape of each weight."""
        ...

    def num_bytes(self) -> int:
        """Return the bytes of all weights."""
        ...

    def passing(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights without copying them: each is valid until the next one is requested."""
        ...


def load_in_place(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy `weights` over the parameters and buffers of the same names; other parameters keep their values.

    All weights are checked before any is written. Tensors may have other devices and dtypes than the model.

    Raises:
        ValueError: an unknown name or a wrong shape; except with `StreamedWeights`, also a name given twice, or two
            values for tied weights. The model is then unchanged.
    """
    own = every_name(model)
    if isinstance(weights, StreamedWeights):
        for name, shape in weights.shapes().items():
            _check(own, name, shape)
        found = weights.passing()
    else:
        found = iter(_checked(own, weights).items())
    with torch.no_grad():
        for name, tensor in found:
            own[name].copy_(tensor)


def _check(own: dict[str, Tensor], name: str, shape: torch.Size) -> None:
    if name not in own:
        raise ValueError(f"the model has no weight '{name}': {suggestion(name, own)}")
    if own[name].shape != shape:
        raise ValueError(f"weight '{name}' has shape {tuple(shape)}, expected {tuple(own[name].shape)}")


def _checked(own: dict[str, Tensor], weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    given: dict[str, Tensor] = {}
    first_name_of: dict[int, str] = {}
    for name, tensor in weights:
        _check(own, name, tensor.shape)
        if name in given:
            raise ValueError(f"weight '{name}' is given twice")
        twin = first_name_of.setdefault(id(own[name]), name)
        if twin != name and not torch.equal(given[twin], tensor):
            raise ValueError(f"weights '{twin}' and '{name}' are tied, but have two different values")
        given[name] = tensor
    return given


def every_name(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers themselves (no copies); tied weights are under each of their names."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
