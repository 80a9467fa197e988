"""Read boxes (`mapping.Box`) of weights from safetensors files, which contain complete weights or only boxes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from agentrl.backends.megatron.weights.mapping import Box
from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SavedBox:
    """A box of a weight, stored in a file under the name `key`."""

    file: Path
    key: str
    box: Box


class SavedBoxes:
    """Boxes of weights in files, by the name of the weight. Only boxes that are read are loaded into memory."""

    def __init__(self, boxes: dict[str, list[SavedBox]]) -> None:
        self._boxes = boxes
        self._open: dict[Path, safe_open] = {}

    def names(self) -> list[str]:
        """Return the names of all weights."""
        return [*self._boxes]

    def complete(self, name: str) -> Tensor:
        """Return a complete weight, in the data type of its file."""
        return self.read(name, tuple((0, length) for length in self.shape(name) or ()))

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape that the boxes of a weight fill; None if the files have no boxes of this weight."""
        if name not in self._boxes:
            return None
        ends = [[start + length for start, length in saved.box] for saved in self._boxes[name]]
        return tuple(map(max, zip(*ends, strict=True)))

    def read(self, name: str, box: Box) -> Tensor:
        """Return the values of a box.

        Raises:
            ConfigError: the files do not contain the complete box.
        """
        found: Tensor | None = None
        missing = _volume(box)
        for saved in self._boxes.get(name, ()):
            common = [_common(own, theirs) for own, theirs in zip(box, saved.box, strict=True)]
            if all(length > 0 for _, length in common):
                values = self._values(saved, common)
                found = _box_like(values, box) if found is None else found
                found[_relative(common, box)] = values
                missing -= _volume(common)
        if found is None or missing:
            raise ConfigError.keyless(f"the weight '{name}' is missing or incomplete")
        return found

    def _values(self, saved: SavedBox, box: Sequence[tuple[int, int]]) -> Tensor:
        if saved.file not in self._open:
            self._open[saved.file] = safe_open(saved.file, "pt")
        opened: Any = self._open[saved.file]  # Any: safetensors is untyped
        values: Tensor = opened.get_slice(saved.key)[_relative(box, saved.box)]
        return values


def complete_weights(files: Iterable[Path]) -> SavedBoxes:
    """Return the weights in the safetensors files of a Hugging Face model."""
    boxes: dict[str, list[SavedBox]] = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118  # `opened` is no dictionary
                shape = opened.get_slice(name).get_shape()
                boxes[name] = [SavedBox(file, name, tuple((0, length) for length in shape))]
    return SavedBoxes(boxes)


def _box_like(values: Tensor, box: Box) -> Tensor:
    return torch.empty([length for _, length in box], dtype=values.dtype)


def _common(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    start, stop = max(one[0], other[0]), min(sum(one), sum(other))
    return start, stop - start


def _relative(inner: Sequence[tuple[int, int]], outer: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    pairs = zip(inner, outer, strict=True)
    return tuple(slice(start - first, start - first + length) for (start, length), (first, _) in pairs)


def _volume(box: Sequence[tuple[int, int]]) -> int:
    total = 1
    for _, length in box:
        total *= length
    return total
