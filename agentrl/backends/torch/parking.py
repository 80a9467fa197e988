"""Tensors that stand in CPU memory while nobody computes with them, so that the device has room for others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Moves:
    """How values leave a device's memory, and how they come back; neither changes a bit."""

    out: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]


def moves_of(device: torch.device) -> Moves | None:
    """The moves between that device and the CPU; None on the CPU, where there is nothing to gain."""
    return Moves(_pinned, lambda value: value.to(device)) if device.type == "cuda" else None


class Parking:
    """Keeps tensors in CPU memory except while they are in use.

    A tensor is the same object wherever its values are. Without moves it does nothing.

    Args:
        tensors: those to keep there; asked for at each move, as an optimizer makes its own late.
    """

    def __init__(self, tensors: Callable[[], Iterable[Tensor]], moves: Moves | None) -> None:
        self._tensors, self._moves = tensors, moves
        if moves:
            self._put(moves.out)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While open, the tensors are on their device."""
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
    """A copy in page-locked memory, which the device copies from at full speed."""
    return torch.empty_like(value, device="cpu", pin_memory=True).copy_(value)
