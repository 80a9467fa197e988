"""Rows to a file that is whole or not there: JSON Lines or Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.errors import DataError
from agentrl.store.text import write_json
from agentrl.store.whole import whole_file


def write_lines(path: Path, rows: Iterable[Mapping[str, object]]) -> int:
    """Write an object a line; how many.

    Raises:
        DataError: the file cannot be written.
    """
    num_rows = 0
    try:
        with whole_file(path) as file:
            for row in rows:
                file.write(_line(row))
                num_rows += 1
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error
    return num_rows


def write_table(path: Path, rows: Iterable[Mapping[str, object]]) -> int:
    """Write a Parquet file; how many rows.

    Raises:
        DataError: the file cannot be written, or a column would have values of several types.
    """
    content = list(rows)
    try:
        names = dict.fromkeys(chain.from_iterable(content))  # a row may lack a column that another has
        table = pa.table({name: pa.array([row.get(name) for row in content]) for name in names})
        with whole_file(path) as file:
            pq.write_table(table, file)
    except (pa.ArrowException, UnicodeError) as error:
        line = " ".join(str(error).split())
        raise DataError(f"{path}: the rows do not fit the columns of a Parquet file: {line}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error
    return len(content)


def _line(row: Mapping[str, object]) -> bytes:
    """As text where that is possible: half a surrogate pair, which a model may write, is only JSON when escaped."""
    try:
        return write_json(row).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row).encode() + b"\n"
