"""Protocol for the rows of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, TypeAlias

from pydantic import JsonValue

Row: TypeAlias = Mapping[str, JsonValue]


class Rows(Protocol):
    """The rows of one dataset, counted from 0.

    Attributes:
        source: `data_source` of rows that do not have this column; None for files.
    """

    source: str | None

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Row: ...

    def scan(self, num_rows: int) -> Iterator[Row]:
        """Return the first `num_rows` rows in order; faster than reading them one by one."""
        ...

    def where(self, row: int) -> str:
        """Return file and row, for error messages."""
        ...
