"""Every row of some files, or why it is none: reading goes on after one that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agentrl.data.rows import Row, Rows
from agentrl.errors import DataError


def scan(parts: Iterable[Rows]) -> Iterator[tuple[Rows, int, Row | DataError]]:
    """(where it comes from, its number there, the row or what is wrong with it)."""
    for part in parts:
        rows = part.scan(len(part))
        for row in range(len(part)):
            try:
                yield part, row, next(rows)
            except DataError as error:
                yield part, row, error
                rows = map(part.__getitem__, range(row + 1, len(part)))


def first_row(parts: Iterable[Rows]) -> Row:
    """The first that can be read.

    Raises:
        DataError: there is none; what is wrong with the first.
    """
    why: DataError | None = None
    for _, _, content in scan(parts):
        if not isinstance(content, DataError):
            return content
        why = why or content
    raise why or DataError("no rows to read")
