"""The optimizer state as parts that are named after weights, so that a checkpoint loads in any layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from agentrl.backends.megatron.training.optimizer import LayoutOptimizer
from agentrl.backends.megatron.weights.mapping import Box, Mapped, Part, write_to
from agentrl.backends.megatron.weights.saved_boxes import SavedBoxes


def state_parts(optimizer: LayoutOptimizer, parameters: Sequence[Mapped]) -> Iterator[tuple[str, Box, Tensor]]:
    """Yield this process's parts of the optimizer state: name, box (`mapping.Box`) and values, in CPU memory."""
    for each in parameters:
        if not each.value.requires_grad:
            continue
        for key, complete in optimizer.state(each.value):
            for part in each.parts:
                if part.is_first:
                    yield f"{part.name}/{key}", part.box, _boxed(part, complete)


def load_parts(optimizer: LayoutOptimizer, parameters: Sequence[Mapped], saved: SavedBoxes, num_updates: int) -> None:
    """Read this process's parts of the state of an optimizer that had done `num_updates` updates."""
    with optimizer.in_use():
        for each in parameters:
            if not each.value.requires_grad:
                continue
            keys = optimizer.state_names(each.value, num_updates)
            complete = {key: _assembled(each.value, each.parts, saved, key) for key in keys}
            optimizer.load_state(each.value, complete, num_updates)
    optimizer.num_updates = num_updates


def _boxed(part: Part, complete: Tensor) -> Tensor:
    """Return the values of a part, with the shape of its box, on the CPU."""
    return part.view(complete).detach().cpu().reshape([length for _, length in part.box])


def _assembled(parameter: Tensor, parts: Sequence[Part], saved: SavedBoxes, key: str) -> Tensor:
    """Return the saved state `key` of a parameter, in the parameter's shape; 0 in rows that pad the vocabulary."""
    found = torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
    for part in parts:
        write_to(part, found, saved.read(f"{part.name}/{key}", part.box))
    return found
