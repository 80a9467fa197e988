"""A lazy, indexable table over the rows of several datasets."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Generic, TypeVar, overload

from agentrl.data.fields import FieldError
from agentrl.data.rows import Row, Rows, open_rows
from agentrl.errors import DataError

T = TypeVar("T")
Reader = Callable[[Row, int, Rows], T]
"""(row, its position in the whole dataset, where it comes from) -> what it means; raises FieldError."""


class Table(Sequence[T], Generic[T]):
    """Rows of `parts`, one after the other, each read when it is asked for.

    Args:
        positions: which rows of the parts this table shows; all if none are given.
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
        """Rows that this table shows of each dataset."""
        counts = Counter(bisect_right(self._ends, position) for position in self._positions)
        return [counts[part] for part in range(len(self._parts))]

    @property
    def num_positions(self) -> int:
        """Rows of all datasets, shown or not."""
        return self._ends[-1] if self._ends else 0

    def position_of(self, index: int) -> int:
        """The position in the whole dataset of a row that this table shows."""
        return self._positions[index]

    def where(self, index: int) -> str:
        """File and row, for error messages."""
        part, row = self._locate(index)
        return part.where(row)

    def keep(self, indices: Sequence[int]) -> Table[T]:
        """The table of these rows; they keep their positions in the dataset."""
        return Table(self._parts, self._read, [self._positions[index] for index in indices])

    def replace(self, items: Mapping[int, T]) -> Table[T]:
        """This table with some of its rows taken from `items`, by their index here."""
        by_position = {self._positions[index]: item for index, item in items.items()}

        def read(row: Row, position: int, rows: Rows) -> T:
            return by_position[position] if position in by_position else self._read(row, position, rows)

        return Table(self._parts, read, self._positions)

    def check(self, num_rows: int) -> None:
        """Read the first `num_rows` rows once and forget them, so that a bad one is found before training."""
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
    """Open `files` and read every row once, to check it; the first `max_samples` rows if that is not negative.

    Raises:
        DataError: a file or a row cannot be used, or there are no rows.
    """
    return checked_table([open_rows(name) for name in files], read, max_samples, ", ".join(files) or "no files")


def checked_table(parts: Sequence[Rows], read: Reader[T], max_samples: int, name: str) -> Table[T]:
    """The table of `parts`, every row read once; the first `max_samples` rows if that is not negative.

    Raises:
        DataError: a row cannot be used, or there are none; `name` says of what.
    """
    table = Table(parts, read)
    num_rows = len(table) if max_samples < 0 else min(max_samples, len(table))
    if not num_rows:
        raise DataError(f"{name}: no rows to read")
    table.check(num_rows)
    return table[:num_rows]
