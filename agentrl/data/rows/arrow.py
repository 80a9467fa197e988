"""Rows of an Arrow table: Parquet files, and datasets of the `datasets` library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from agentrl.data.rows.base import Row
from agentrl.errors import DataError, suggestion
from agentrl.utils.images import data_url

_SCAN_ROWS = 1024
_NO_PYTHON_VALUE = (ValueError, OverflowError, RecursionError, pa.ArrowException)
"""Errors that pyarrow raises for text that is not UTF-8, dates after year 9999, and very deep nesting."""


class ArrowRows:
    """Rows of `table`, converted to Python objects lazily."""

    def __init__(self, table: pa.Table, name: str, source: str | None = None) -> None:
        self._table = table
        self._name = name
        self.source = source

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, row: int) -> Row:
        try:
            return next(_rows(self._table.slice(row, 1)))
        except _NO_PYTHON_VALUE as error:
            raise DataError(f"{self.where(row)}: a value cannot be read: {str(error).splitlines()[0]}") from error

    def scan(self, num_rows: int) -> Iterator[Row]:
        """Yield the first `num_rows` rows; they are converted in batches."""
        start = 0
        for batch in self._table.slice(0, num_rows).to_batches(max_chunksize=_SCAN_ROWS):
            try:
                rows: Iterable[Row] = list(_rows(batch))
            except _NO_PYTHON_VALUE:
                rows = map(self.__getitem__, range(start, start + len(batch)))  # raises an error that names the row
            yield from rows
            start += len(batch)

    def where(self, row: int) -> str:
        """Return the name of the table and the row."""
        return f"{self._name} row {row}"

    def apart(self, column: str) -> tuple[ArrowRows, pa.ChunkedArray]:
        """Return the rows without `column`, and this column as an Arrow array.

        In the array, bytes stay bytes; in rows, bytes become data URLs.

        Raises:
            DataError: the column does not exist.
        """
        if column not in self._table.column_names:
            raise DataError(f"{self._name}: no column '{column}'; {suggestion(column, self._table.column_names)}")
        return ArrowRows(self._table.drop_columns([column]), self._name, self.source), self._table[column]


def read_parquet(path: Path) -> ArrowRows:
    """Read a Parquet file.

    Raises:
        DataError: the file is not a Parquet file, or is damaged.
    """
    try:
        return ArrowRows(pq.read_table(path, partitioning=None), str(path))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from error


def _rows(table: pa.Table | pa.RecordBatch) -> Iterator[Row]:
    for row in table.to_pylist():
        yield {key: _plain(value) for key, value in row.items()}


def _plain(value: object) -> JsonValue:
    """Convert a value to JSON types. Null fields are removed: Arrow adds null for fields that only other rows have."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return data_url(value)  # image columns contain bytes, which JSON does not support
    return value if isinstance(value, str | int | float | None) else str(value)
