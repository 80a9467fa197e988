"""Values that layers read in a forward pass, kept for the backward pass, which recomputes these layers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

Value = TypeVar("Value")


class PassValue(Generic[Value]):
    """The value that one layer reads in each pass.

    Only recomputed layers read a value again, so only the values of these layers are kept. A layer will be recomputed
    if megatron-core runs its forward pass without gradients. A pipeline runs other micro-batches before it recomputes a
    layer. Backward passes run in the order of the forward passes, so a recomputed layer reads the oldest value that is
    kept.
    """

    def __init__(self) -> None:
        self._current: Value | None = None
        self._is_forward = self._keeps = False
        self._kept: deque[Value | None] = deque()

    def begin(self, value: Value | None, *, keeps: bool) -> None:
        """Set the value of a forward pass; `keeps`: whether a backward pass follows."""
        self._current, self._keeps, self._is_forward = value, keeps, True

    def end(self) -> None:
        """End the forward pass. Until the next forward pass begins, only recomputed layers read values."""
        self._current, self._is_forward = None, False

    def read(self) -> Value | None:
        """Return the layer's value in the pass that is running or is recomputed."""
        if not self._is_forward:
            return self._kept.popleft()
        if self._keeps and not torch.is_grad_enabled():  # the first pass of a layer that will be recomputed
            self._kept.append(self._current)
        return self._current

    def clear(self) -> None:
        """Forget the values of layers that no backward pass reached."""
        self._kept.clear()


@contextmanager
def forward_of(values: Iterable[PassValue[Any]]) -> Iterator[None]:  # Any: values of several types
    """Call `end` of each value at the end of the `with` block."""
    try:
        yield
    finally:
        for value in values:
            value.end()
