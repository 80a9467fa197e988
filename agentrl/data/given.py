"""What a caller in Python brings as data, as files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pydantic import JsonValue

from agentrl.errors import DataError

Data: TypeAlias = str | Path | Iterable[str | Path] | Iterable[Mapping[str, JsonValue]]
"""Files, or rows as a file would hold them: a list, a generator, a dataset."""


def given_files(data: Data, path: Path, name: str) -> list[str]:
    """Names of files; rows are written to `path`, so that the run's folder holds what it was trained on.

    Args:
        name: of the argument, for error messages.

    Raises:
        DataError: it holds neither files nor rows, or both, or a row that JSON cannot express.
    """
    if isinstance(data, (str, Path)):
        return [str(data)]
    if isinstance(data, Mapping) or not isinstance(data, Iterable) or hasattr(data, "iloc"):
        hint = ": give its .to_dict('records')" if hasattr(data, "iloc") else ""
        raise DataError(f"{name} must be files or a list of rows (dicts), not a {type(data).__name__}{hint}")
    items = list(data)
    for position, item in enumerate(items):
        if not isinstance(item, (str, Path, Mapping)):
            raise DataError(f"{name}[{position}] must be a file's name or a row (a dict), not {item!r:.100}")
    rows = [item for item in items if isinstance(item, Mapping)]
    if rows and len(rows) < len(items):
        raise DataError(f"{name} must be files or rows, not both")
    return _written(rows, path, name) if rows else [str(item) for item in items]


def _written(rows: Sequence[Mapping[str, JsonValue]], path: Path, name: str) -> list[str]:
    lines = [_line(row, f"{name}[{position}]") for position, row in enumerate(rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
    return [str(path)]


def _line(row: Mapping[str, JsonValue], where: str) -> str:
    try:
        return json.dumps({**row}) + "\n"
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: not JSON: {error}") from error
