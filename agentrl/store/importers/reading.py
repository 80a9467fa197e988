"""Read log files row by row, so that a bad row can be reported or skipped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

from pydantic import JsonValue

from agentrl.data.fields import FieldError
from agentrl.data.rows.arrow import read_parquet
from agentrl.data.rows.open import SUFFIXES
from agentrl.errors import DataError
from agentrl.store.text import read_json

Row: TypeAlias = tuple[str, Callable[[], JsonValue]]
"""(file and row number as text, function that reads the row). The function raises FieldError if the row is invalid."""


def log_files(source: Path) -> list[Path]:
    """Return `source` if it is a file, else the files in this folder in numeric order: `9.jsonl` before `10.jsonl`.

    Raises:
        DataError: no file is found.
    """
    if source.is_file():
        return [source]
    found = [path for path in source.glob("*") if path.suffix in SUFFIXES and path.name[0] != "."]
    if not found:
        raise DataError(f"{source}: expected a file or a folder of files that end in {', '.join(SUFFIXES)}")
    return sorted(found, key=lambda path: [int(part) if part.isdecimal() else part for part in _parts(path.name)])


def log_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a Parquet file, a JSON Lines file, or a JSON document (a list of rows, or one row).

    Raises:
        DataError: the file cannot be read.
    """
    if path.suffix == ".parquet":
        rows = read_parquet(path)
        for number, row in enumerate(rows.scan(len(rows))):
            yield rows.where(number), partial(_as_it_is, dict(row))
        return
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    document = _document(content) if path.suffix == ".json" else None
    if document is None:
        yield from _line_rows(path, content)
        return
    for number, value in enumerate(document):
        yield f"{path} row {number}", partial(_as_it_is, value)


def _line_rows(path: Path, content: bytes) -> Iterator[Row]:
    lines = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
    for row, (number, line) in enumerate(lines):
        yield f"{path} row {row} (line {number})", partial(_parsed, line)


def _as_it_is(value: JsonValue) -> JsonValue:
    return value


def _document(content: bytes) -> list[JsonValue] | None:
    """Return the rows of a JSON document; None if the content is not one document, and so may be JSON Lines."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    is_one = not isinstance(value, list) or (bool(value) and isinstance(value[0], dict) and "role" in value[0])
    return [value] if is_one else value


def _parsed(line: bytes) -> JsonValue:
    try:
        return cast(JsonValue, read_json(line.decode()))
    except ValueError as error:  # base class of JSONDecodeError and UnicodeDecodeError
        raise FieldError(f"not JSON: {error}") from error


def _parts(name: str) -> list[str]:
    return re.split(r"(\d+)", name)
