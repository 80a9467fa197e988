"""Iteration over all rows of several datasets; an unreadable row does not stop the iteration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agentrl.data.rows.base import Row, Rows
from agentrl.errors import DataError


def scan(parts: Iterable[Rows]) -> Iterator[tuple[Rows, int, Row | DataError]]:
    """Yield (dataset, row number in the dataset, row) for each row; an unreadable row is replaced by its error."""
    for part in parts:
        rows = part.scan(len(part))
        for row in range(len(part)):
            try:
                yield part, row, next(rows)
            except DataError as error:
                yield part, row, error
                rows = map(part.__getitem__, range(row + 1, len(part)))


def first_row(parts: Iterable[Rows]) -> Row:
    """Return the first row that can be read.

    Raises:
        DataError: no row can be read; the error of the first row is raised.
    """
    why: DataError | None = None
    for _, _, content in scan(parts):
        if not isinstance(content, DataError):
            return content
        why = why or content
    raise why or DataError("no rows to read")
