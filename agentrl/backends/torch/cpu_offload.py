"""Offload tensors to CPU memory while they are not used, to free device memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Moves:
    """Functions that move values out of a device's memory and back; values stay exactly the same."""

    out: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]


def moves_of(device: torch.device) -> Moves | None:
    """Return the moves between the device and the CPU; None if the device is the CPU."""
    return Moves(_pinned, lambda value: value.to(device)) if device.type == "cuda" else None


class CpuOffload:
    """Keeps tensors in CPU memory except while they are in use.

    The tensor objects stay the same; only their data moves. Does nothing if `moves` is None.

    Args:
        tensors: returns the tensors to offload. Called for each move, because an optimizer creates its state
            at the first step.
    """

    def __init__(self, tensors: Callable[[], Iterable[Tensor]], moves: Moves | None) -> None:
        self._tensors, self._moves = tensors, moves
        if moves:
            self._put(moves.out)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the tensors on their device inside the `with` block."""
        if not self._moves:
            yield
            return
        self._put(self._moves.back)
        try:
            yield
        finally:
            self._put(self._moves.out)

    def _put(self, move: Callable[[Tensor], Tensor]) -> None:
        for tensor in self._tensors():
            tensor.data = move(tensor.data)


def _pinned(value: Tensor) -> Tensor:
    """Copy to page-locked memory, which makes copies to the device faster."""
    return torch.empty_like(value, device="cpu", pin_memory=True).copy_(value)
