"""Opens one dataset: a Parquet, JSON or JSONL file, task folders, or a name of the `datasets` library."""

from __future__ import annotations

import os
import re
from pathlib import Path

from agentrl.data.rows.base import Rows
from agentrl.data.task_folders.find import is_task_folders
from agentrl.errors import DataError, suggestion

SUFFIXES = (".parquet", ".jsonl", ".json")
_HUB_NAME = re.compile(r"(?P<path>[\w.-]+/[\w.-]+)(/(?P<config>[\w.-]+))?(:(?P<split>[\w\[\]:%+-]+))?")


def open_rows(name: str) -> Rows:
    """Open one entry of `data.train_files`. A file has priority over a dataset of the same name.

    Raises:
        DataError: the file or dataset does not exist, has an unknown format, or cannot be read.
    """
    check_dataset(name)
    if is_task_folders(name):
        from agentrl.data.task_folders.rows import TaskFolderRows  # imported here: that module imports this package

        return TaskFolderRows(name)
    path = Path(name).expanduser()
    if os.path.exists(path):  # noqa: PTH110  # pathlib raises on names that are too long
        return _open_file(path)
    match = _HUB_NAME.fullmatch(name)
    assert match is not None  # checked above
    from agentrl.data.rows.hub import load_hub_rows  # an optional library, and slow to import

    return load_hub_rows(match["path"], match["config"], match["split"] or "train")


def check_dataset(name: str) -> None:
    """Reject an entry of `data.train_files` that is not a file, a folder of tasks or a dataset name. Nothing is opened.

    Raises:
        DataError: the file does not exist or has an unknown format, or `name` cannot be a dataset name.
    """
    if is_task_folders(name):
        return
    path = Path(name).expanduser()
    exists = os.path.exists(path)  # noqa: PTH110  # pathlib raises on names that are too long
    formats = ", ".join(SUFFIXES)
    if path.suffix in SUFFIXES and not (exists and path.is_file()):
        raise DataError(f"{path}: no such file; {_nearest_file(path)}")
    if exists and path.suffix not in SUFFIXES:
        raise DataError(f"{path}: expected a file that ends in {formats}")
    if not exists and not _HUB_NAME.fullmatch(name):
        expected = f"a file that ends in {formats}, a folder of tasks, or 'owner/dataset[/config][:split]'"
        raise DataError(f"{name}: expected {expected}")


def _open_file(path: Path) -> Rows:
    if path.suffix == ".parquet":
        from agentrl.data.rows.arrow import read_parquet  # pyarrow is slow to import

        return read_parquet(path)
    from agentrl.data.rows.json import read_json

    return read_json(path)


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder '{path.parent}' either"
    readable = [file.name for file in path.parent.iterdir() if file.suffix in SUFFIXES]
    return f"in its folder: {suggestion(path.name, readable)}"
