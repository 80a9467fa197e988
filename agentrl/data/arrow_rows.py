"""Rows of an Arrow table: Parquet files, and what the `datasets` library holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from agentrl.data.rows import Row
from agentrl.errors import DataError, suggestion
from agentrl.images import data_url

_SCAN_ROWS = 1024


class ArrowRows:
    """Rows of `table`; a row becomes Python objects only when it is read."""

    def __init__(self, table: pa.Table, name: str, source: str | None = None) -> None:
        self._table = table
        self._name = name
        self.source = source

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, row: int) -> Row:
        return next(_rows(self._table.slice(row, 1)))

    def scan(self, num_rows: int) -> Iterator[Row]:
        """The first `num_rows` rows, a batch at a time."""
        for batch in self._table.slice(0, num_rows).to_batches(max_chunksize=_SCAN_ROWS):
            yield from _rows(batch)

    def where(self, row: int) -> str:
        """The name of the table and the row."""
        return f"{self._name} row {row}"

    def apart(self, column: str) -> tuple[ArrowRows, pa.ChunkedArray]:
        """The rows without a column, and that column as Arrow holds it: bytes stay bytes.

        Raises:
            DataError: there is no such column.
        """
        if column not in self._table.column_names:
            raise DataError(f"{self._name}: no column '{column}'; {suggestion(column, self._table.column_names)}")
        return ArrowRows(self._table.drop_columns([column]), self._name, self.source), self._table[column]


def read_parquet(path: Path) -> ArrowRows:
    """Read a Parquet file.

    Raises:
        DataError: it is not one, or is damaged.
    """
    try:
        return ArrowRows(pq.read_table(path, partitioning=None), str(path))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from error


def _rows(table: pa.Table | pa.RecordBatch) -> Iterator[Row]:
    for row in table.to_pylist():
        yield {key: _plain(value) for key, value in row.items()}


def _plain(value: object) -> JsonValue:
    """As JSON has it. Keys without a value go: Arrow gives every row's struct the keys of all rows."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return data_url(value)  # JSON has no bytes; an image column has them
    return value if isinstance(value, str | int | float | None) else str(value)
