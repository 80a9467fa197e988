"""Rows of a JSON list or of JSON Lines."""

from __future__ import annotations

from array import array
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from pydantic import JsonValue

from agentrl.data.rows.base import Row, Rows
from agentrl.errors import DataError
from agentrl.security.json_depth import parse


class ListRows:
    """Rows of a JSON list, held in memory."""

    source: str | None = None

    def __init__(self, rows: list[JsonValue], path: Path) -> None:
        self._rows = rows
        self._path = path

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Row:
        return _object(self._rows[row], self.where(row))

    def scan(self, num_rows: int) -> Iterator[Row]:
        """Yield the first `num_rows` rows."""
        return (self[row] for row in range(num_rows))

    def where(self, row: int) -> str:
        """Return file and row."""
        return f"{self._path} row {row}"


class LineRows:
    """Rows of a JSON Lines file. Only the byte offset and the line number of each row are kept in memory."""

    source: str | None = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets = array("Q")  # bytes
        self._lines = array("Q")  # counted from 1; blank lines are not rows
        offset = 0
        with path.open("rb") as file:
            for line_number, line in enumerate(file, start=1):
                if line.strip():
                    self._offsets.append(offset)
                    self._lines.append(line_number)
                offset += len(line)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, row: int) -> Row:
        with self._path.open("rb") as file:
            file.seek(self._offsets[row])
            return self._parse(row, file.readline())

    def scan(self, num_rows: int) -> Iterator[Row]:
        """Yield the first `num_rows` rows in one pass over the file."""
        with self._path.open("rb") as file:
            lines = (line for line in file if line.strip())
            for row, line in zip(range(num_rows), lines, strict=False):
                yield self._parse(row, line)

    def where(self, row: int) -> str:
        """Return file, row and line."""
        return f"{self._path} row {row} (line {self._lines[row]})"

    def _parse(self, row: int, line: bytes) -> Row:
        try:
            return _object(parse(line), self.where(row))
        except ValueError as error:
            raise DataError(
                f"{self.where(row)}: not JSON: {error} (expected one object per line, or a list)"
            ) from error


def read_json(path: Path) -> Rows:
    """Open a file with a JSON list, or with one object per line. The format is detected from the content.

    Raises:
        DataError: the file cannot be read, or its list is not JSON. Lines that are not JSON raise the error only when
            they are read.
    """
    try:
        return _read_list(path) if _holds_list(path) else LineRows(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _holds_list(path: Path) -> bool:
    with path.open("rb") as file:
        return next((line.removeprefix(BOM_UTF8).lstrip()[:1] for line in file if line.strip()), b"") == b"["


def _read_list(path: Path) -> ListRows:
    try:
        return ListRows(cast("list[JsonValue]", parse(path.read_bytes())), path)
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}") from error


def _object(value: JsonValue, where: str) -> Row:
    if not isinstance(value, dict):
        raise DataError(f'{where}: expected an object such as {{"prompt": ...}}, got {type(value).__name__}')
    return cast(Row, value)
