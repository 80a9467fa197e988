"""Conversion of published datasets to Parquet files with verl's columns; shared by the preparation scripts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.data.fields import FieldError
from agentrl.data.rows.arrow import ArrowRows
from agentrl.data.rows.base import Row, Rows
from agentrl.data.rows.open import open_rows
from agentrl.errors import DataError

MakeTask: TypeAlias = Callable[[Row, str, int], dict[str, object]]
"""(row, split, row number) -> the task's columns; raises FieldError if the row is not a task."""


def preparing_parser(description: str | None, out: str, dataset: str) -> argparse.ArgumentParser:
    """Return a parser with the common options: `--out`, `--train` and `--test`.

    Args:
        dataset: dataset on the Hugging Face hub, used if no file is given.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(out))
    for split in ("train", "test"):
        parser.add_argument(f"--{split}", default=f"{dataset}:{split}", help="file, or dataset on the hub")
    return parser


def prepare_splits(arguments: argparse.Namespace, make_task: MakeTask, kept: str | None = None) -> None:
    """Write both splits with `write_tasks`, and print the number of tasks of each split."""
    for split in ("train", "test"):
        path = write_tasks(getattr(arguments, split), split, arguments.out, make_task, kept)
        print(f"{path}: {pq.read_metadata(path).num_rows} tasks")


def write_tasks(source: str, split: str, out: Path, make_task: MakeTask, kept: str | None = None) -> Path:
    """Write `out`/`split`.parquet from a file or a dataset on the hub; return the path of the new file.

    Args:
        kept: a column that is copied unchanged, for example images; only from a Parquet file or a dataset on the hub.

    Raises:
        DataError: the source or one of its rows cannot be used, or `out` cannot be written.
    """
    rows = open_rows(source)
    column = None
    if kept is not None:
        if not isinstance(rows, ArrowRows):
            raise DataError(f"{source}: '{kept}' can only be read from Parquet files and the hub")
        rows, column = rows.apart(kept)
    table = pa.Table.from_pylist(list(_tasks(rows, split, make_task)))
    if column is not None:
        table = table.append_column(str(kept), column)
    path = out / f"{split}.parquet"
    try:
        out.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def _tasks(rows: Rows, split: str, make_task: MakeTask) -> Iterator[dict[str, object]]:
    for index, row in enumerate(rows.scan(len(rows))):
        try:
            yield make_task({key: value for key, value in row.items() if value is not None}, split, index)
        except FieldError as error:
            raise DataError(f"{rows.where(index)}: {error}") from error
