"""Rows of one dataset: a Parquet, JSON or JSONL file, or a name of the `datasets` library; read one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeAlias

from pydantic import JsonValue

from agentrl.errors import DataError, suggestion

Row: TypeAlias = Mapping[str, JsonValue]

SUFFIXES = (".parquet", ".jsonl", ".json")
_HUB_NAME = re.compile(r"(?P<path>[\w.-]+/[\w.-]+)(/(?P<config>[\w.-]+))?(:(?P<split>[\w\[\]:%+-]+))?")


class Rows(Protocol):
    """The rows of one dataset, counted from 0.

    Attributes:
        source: what rows that name no `data_source` come from; None for files.
    """

    source: str | None

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Row: ...

    def scan(self, num_rows: int) -> Iterator[Row]:
        """The first `num_rows` rows in order, faster than one by one."""
        ...

    def where(self, row: int) -> str:
        """File and row, for error messages."""
        ...


def open_rows(name: str) -> Rows:
    """Open one entry of `data.train_files`. A file wins over a dataset of the same name.

    Raises:
        DataError: no such file or dataset, a format that is not read here, or a file that cannot be read.
    """
    path = Path(name).expanduser()
    if path.suffix in SUFFIXES or path.exists():
        return _open_file(path)
    if match := _HUB_NAME.fullmatch(name):
        from agentrl.data.hub import load_hub_rows  # an optional library, and slow to import

        return load_hub_rows(match["path"], match["config"], match["split"] or "train")
    raise DataError(f"{name}: expected a file that ends in {', '.join(SUFFIXES)}, or 'owner/dataset[/config][:split]'")


def _open_file(path: Path) -> Rows:
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise DataError(f"{path}: no such file; {_nearest_file(path)}")
    if path.suffix == ".parquet":
        from agentrl.data.arrow_rows import read_parquet  # pyarrow is slow to import

        return read_parquet(path)
    from agentrl.data.json_rows import read_json

    return read_json(path)


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder '{path.parent}' either"
    readable = [file.name for file in path.parent.iterdir() if file.suffix in SUFFIXES]
    return f"in its folder: {suggestion(path.name, readable)}"
