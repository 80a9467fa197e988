"""Data passed from Python: file names, or rows as dictionaries with the columns of a data file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from pydantic import JsonValue

from agentrl.errors import DataError
from agentrl.utils.images import ImageError, data_url, read_image

Data: TypeAlias = str | Path | Iterable[str | Path] | Iterable[Mapping[str, JsonValue]]
"""File names, or rows as dictionaries with the columns of a data file. Rows may be a list, a generator or a dataset."""


def given_files(data: Data, name: str) -> tuple[list[str], str]:
    """Return (file names, rows as the text of a JSONL file); at least one of the two is empty.

    Images in rows become data URLs.

    Args:
        name: name of the argument, for error messages.

    Raises:
        DataError: the data is neither file names nor rows, mixes the two, or has a row that cannot be written as JSON.
    """
    if isinstance(data, (str, Path)):
        return [str(data)], ""
    if isinstance(data, Mapping) or not isinstance(data, Iterable) or hasattr(data, "iloc"):
        hint = ": pass its .to_dict('records')" if hasattr(data, "iloc") else ""
        raise DataError(f"{name} must be files or a list of rows (dicts), not a {type(data).__name__}{hint}")
    items = list(data)
    for position, item in enumerate(items):
        if not isinstance(item, (str, Path, Mapping)):
            raise DataError(f"{name}[{position}] must be a file's name or a row (a dict), not {item!r:.100}")
    rows = [item for item in items if isinstance(item, Mapping)]
    if rows and len(rows) < len(items):
        raise DataError(f"{name} must be files or rows, not both")
    if rows:
        return [], "".join(_line(row, f"{name}[{position}]") for position, row in enumerate(rows))
    return [str(item) for item in items], ""


def _line(row: Mapping[str, JsonValue], where: str) -> str:
    try:
        return json.dumps({**row}, default=_image) + "\n"
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: not JSON: {error}") from error


def _image(value: object) -> str:
    """Convert an image (bytes or a Pillow image), which JSON cannot represent, to a data URL."""
    if not isinstance(value, bytes) and not hasattr(value, "save"):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    try:
        return data_url(read_image(value))
    except ImageError as error:
        raise TypeError(f"an image: {error}") from error
