"""A lazy, indexable table over the rows of several datasets."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Generic, TypeVar, overload

from agentrl.data.fields import FieldError
from agentrl.data.rows.base import Row, Rows
from agentrl.data.rows.open import open_rows
from agentrl.errors import DataError

T = TypeVar("T")
Reader = Callable[[Row, int, Rows], T]
"""(row, position of the row in the complete dataset, `Rows` that contain the row) -> parsed item; raises FieldError."""


class Table(Sequence[T], Generic[T]):
    """The concatenated rows of `parts`, parsed lazily.

    Args:
        positions: positions, in the complete dataset, of the rows of this table; None: all rows.
    """

    def __init__(self, parts: Sequence[Rows], read: Reader[T], positions: Sequence[int] | None = None) -> None:
        self._parts = parts
        self._ends = list(accumulate(len(part) for part in parts))
        self._read = read
        self._positions = range(self._ends[-1] if parts else 0) if positions is None else positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Table[T]: ...
    def __getitem__(self, index: int | slice) -> T | Table[T]:
        if isinstance(index, slice):
            return Table(self._parts, self._read, self._positions[index])
        part, row = self._locate(index)
        return self._checked(part, row, part[row], self._positions[index])

    @property
    def file_sizes(self) -> list[int]:
        """Number of rows that this table has from each dataset."""
        counts = Counter(bisect_right(self._ends, position) for position in self._positions)
        return [counts[part] for part in range(len(self._parts))]

    @property
    def num_positions(self) -> int:
        """Number of rows of all datasets, including rows that are not in this table."""
        return self._ends[-1] if self._ends else 0

    def position_of(self, index: int) -> int:
        """Return a row's position in the complete dataset; `index` is its position in this table."""
        return self._positions[index]

    def where(self, index: int) -> str:
        """Return file and row, for error messages."""
        part, row = self._locate(index)
        return part.where(row)

    def keep(self, indices: Sequence[int]) -> Table[T]:
        """Return a table of the rows at `indices`; each row keeps its position in the complete dataset."""
        return Table(self._parts, self._read, [self._positions[index] for index in indices])

    def replace(self, items: Mapping[int, T]) -> Table[T]:
        """Return this table with some rows replaced; `items` maps an index of this table to the new item."""
        by_position = {self._positions[index]: item for index, item in items.items()}

        def read(row: Row, position: int, rows: Rows) -> T:
            return by_position[position] if position in by_position else self._read(row, position, rows)

        return Table(self._parts, read, self._positions)

    def check(self, num_rows: int) -> None:
        """Read the first `num_rows` rows once without keeping them, so that bad rows are found before training."""
        for start, part in zip([0, *self._ends], self._parts, strict=False):
            for row, content in enumerate(part.scan(max(0, min(len(part), num_rows - start)))):
                self._checked(part, row, content, start + row)

    def _locate(self, index: int) -> tuple[Rows, int]:
        position = self._positions[index]
        part = bisect_right(self._ends, position)
        return self._parts[part], position - (self._ends[part - 1] if part else 0)

    def _checked(self, part: Rows, row: int, content: Row, position: int) -> T:
        try:
            return self._read(content, position, part)
        except FieldError as error:
            raise DataError(f"{part.where(row)}: {error}") from error


def load_table(files: Sequence[str], read: Reader[T], max_samples: int = -1) -> Table[T]:
    """Open `files` and check every row, or the first `max_samples` rows if `max_samples` is not negative.

    Raises:
        DataError: a file or a row is invalid, or there are no rows.
    """
    return checked_table([open_rows(name) for name in files], read, max_samples, ", ".join(files) or "no files")


def checked_table(parts: Sequence[Rows], read: Reader[T], max_samples: int, name: str) -> Table[T]:
    """Check all rows of `parts`, or the first `max_samples` if this is not negative; return the rows as a table.

    Args:
        name: name of the dataset, for the error message.

    Raises:
        DataError: a row is invalid, or there are no rows.
    """
    table = Table(parts, read)
    num_rows = len(table) if max_samples < 0 else min(max_samples, len(table))
    if not num_rows:
        raise DataError(f"{name}: no rows to read")
    table.check(num_rows)
    return table[:num_rows]
