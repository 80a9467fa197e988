"""A file of rollouts as flat arrays: per list column, the items of all lists and the end of each list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Truths = NDArray[np.bool_]

_METADATA = "agentrl."
_MARK = re.compile("\ufdd0([0-9a-f]{4})")


@dataclass(frozen=True)
class Items:
    """All items of one list column, over all rows. If `above` is None, the items are the rows.

    Attributes:
        ends: [len(above) + 1]; element i of `above` contains the items from `ends[i]` to `ends[i + 1]`.
        null: [len(above)], true if the list itself is null.
    """

    path: str
    above: Items | None
    ends: Integers
    null: Truths

    def __len__(self) -> int:
        return int(self.ends[-1])

    @cached_property
    def lengths(self) -> Integers:
        """[len(above)] number of items of each list."""
        return self.ends[1:] - self.ends[:-1]

    @cached_property
    def owner(self) -> Integers:
        """[len(self)] the element of `above` that each item belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def row(self) -> Integers:
        """[len(self)] the row that each item belongs to."""
        return np.arange(len(self)) if self.above is None else self.above.row[self.owner]

    def label(self, index: int, leaf: str) -> str:
        """Path of `leaf` of item `index` within its row: `trajectories[0].segments[2].author`."""
        if self.above is None:
            return leaf
        owner = int(self.owner[index])
        name = self.path.rpartition(".")[2]
        around = self.above.label(owner, "")
        here = f"{around}.{name}" if around else name
        return f"{here}[{index - int(self.ends[owner])}]" + (f".{leaf}" if leaf else "")


class Step:
    """Rows of one step of a file, and the file's metadata.

    `items` has the items of each list; `step[path]` returns the values of a leaf. A leaf is a column of values, without
    lists and structs.
    """

    def __init__(self, path: Path, table: pa.Table, number: int) -> None:
        self.path = path
        self.number = number
        metadata = table.schema.metadata or {}
        self.metadata = {key.decode().removeprefix(_METADATA): original(v.decode()) for key, v in metadata.items()}
        self.arrays: dict[str, pa.Array] = {}
        num_rows = table.num_rows
        self.rows = Items("", None, np.array([0, num_rows]), np.zeros(1, np.bool_))
        self.items = {"": self.rows}
        self.holder: dict[str, Items] = {}
        for name in table.column_names:
            self._read(name, table[name].combine_chunks(), self.rows)
        self._values: dict[str, Any] = {}

    def _read(self, path: str, array: pa.Array, items: Items) -> None:
        kind = array.type
        if pa.types.is_struct(kind):
            for field, part in zip(kind, array.flatten(), strict=True):
                self._read(f"{path}.{field.name}", part, items)
        elif pa.types.is_list(kind) or pa.types.is_map(kind):
            offsets = array.offsets.to_numpy().astype(np.int64)
            inner = self.items[path] = Items(path, items, offsets, _nulls(array))
            if pa.types.is_map(kind):
                self._read(f"{path}.name", array.keys, inner)
                self._read(f"{path}.value", array.items, inner)
            else:
                self._read(path, array.values, inner)
        else:
            self.arrays[path], self.holder[path] = array, items

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, path: str) -> Any:
        """The values of a leaf: an array of numbers, or a list of texts, depending on the schema."""
        if path not in self._values:
            array = self.arrays[path]
            texts = pa.types.is_string(array.type)
            self._values[path] = _texts(array) if texts else array.to_numpy(zero_copy_only=False)
        return self._values[path]

    def null(self, path: str) -> Truths:
        """Mask of the null values of a leaf."""
        return _nulls(self.arrays[path])

    def key(self, row: int) -> tuple[int, str, int]:
        """Return (step, uid, rollout number) of a row. The step is `self.number`, even if the row's step differs."""
        if row >= len(self):  # the file has no rows
            return self.number, "", -1
        return self.number, self["uid"][row], int(self["rollout"][row])

    def place(self, path: str, index: int) -> tuple[int, str]:
        """Return (row, column with position) of value `index` of a leaf."""
        holder = self.holder[path]
        leaf = "" if holder.path == path else path.rpartition(".")[2] if holder.path else path
        return int(holder.row[index]), holder.label(index, leaf)

    def list_place(self, path: str, index: int) -> tuple[int, str]:
        """Return (row, column with position) of the list that belongs to element `index` of the enclosing list."""
        above = self.items[path].above
        assert above is not None
        leaf = path.rpartition(".")[2] if above.path else path
        return int(above.row[index]), above.label(index, leaf)


def original(text: str) -> str:
    """Restore text that was made valid UTF-8: a lone surrogate is stored as U+FDD0 and its hex code."""
    return _MARK.sub(lambda found: chr(int(found[1], 16)), text) if "\ufdd0" in text else text


def _texts(array: pa.Array) -> Sequence[str | None]:
    return [None if text is None else original(text) for text in array.to_pylist()]


def _nulls(array: pa.Array) -> Truths:
    nulls: Truths = array.is_null().to_numpy(zero_copy_only=False)
    return nulls
