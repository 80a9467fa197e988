"""Write rows to a JSON Lines or Parquet file, atomically."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.errors import DataError
from agentrl.store.text import write_json
from agentrl.utils.atomic_files import atomic_file


def write_lines(path: Path, rows: Iterable[Mapping[str, object]]) -> int:
    """Write one JSON object per line; return the number of rows.

    Raises:
        DataError: the file cannot be written.
    """
    num_rows = 0
    try:
        with atomic_file(path) as file:
            for row in rows:
                file.write(_line(row))
                num_rows += 1
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error
    return num_rows


def write_table(path: Path, rows: Iterable[Mapping[str, object]]) -> int:
    """Write a Parquet file; return the number of rows.

    Raises:
        DataError: the file cannot be written, or a column has values of several types.
    """
    content = list(rows)
    try:
        names = dict.fromkeys(chain.from_iterable(content))  # rows may have different columns
        table = pa.table({name: pa.array([row.get(name) for row in content]) for name in names})
        with atomic_file(path) as file:
            pq.write_table(table, file)
    except (pa.ArrowException, UnicodeError) as error:
        line = " ".join(str(error).split())
        raise DataError(f"{path}: the rows do not fit the columns of a Parquet file: {line}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error
    return len(content)


def _line(row: Mapping[str, object]) -> bytes:
    """Encode as UTF-8. If a text has a lone surrogate, which UTF-8 cannot encode, escape all non-ASCII characters."""
    try:
        return write_json(row).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row).encode() + b"\n"
