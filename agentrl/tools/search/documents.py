"""Reads the documents of a search tool from a folder or a file, and splits them into passages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from agentrl.data.rows.base import Row
from agentrl.data.rows.open import open_rows
from agentrl.errors import DataError

TEXTS, TABLES = (".txt", ".md"), (".jsonl", ".json", ".parquet")
_FORMATS = ", ".join((*TEXTS, *TABLES))
_HEADING = re.compile(r"\s*#+\s+(.+)")


def document_files(place: Path) -> list[Path]:
    """Return the files with documents: `place` itself, or all files in the folder `place` that are not hidden, sorted.

    Raises:
        DataError: `place` does not exist, is not a document, or contains no documents.
    """
    if place.is_file() and place.suffix in (*TEXTS, *TABLES):
        return [place]
    if not place.is_dir():
        raise DataError(f"'{place}' is {'not a file' if place.exists() else 'not a folder or file'} of {_FORMATS}")
    found = [path for path in place.rglob("*") if path.suffix in (*TEXTS, *TABLES) and path.is_file()]
    visible = [path for path in found if not any(part.startswith(".") for part in path.relative_to(place).parts)]
    if not visible:
        raise DataError(f"the folder '{place}' has no files of {_FORMATS}")
    return sorted(visible, key=lambda path: path.relative_to(place).as_posix())


def passages(files: list[Path], num_words: int) -> Iterator[str]:
    """Yield the passages of all files, in order. The first line of a passage is its title.

    Args:
        num_words: maximum number of words of a passage; a longer text becomes several passages with the same title.

    Raises:
        DataError: a file or row cannot be read; the message names the file or row.
    """
    pieces = re.compile(rf"\S+(?:\s+\S+){{0,{num_words - 1}}}")
    for file in files:
        for title, text in _text(file) if file.suffix in TEXTS else _rows(file):
            line = " ".join(title.split())
            yield from (f"{line}\n{piece}" for piece in pieces.findall(text) or [""])


def _text(file: Path) -> Iterator[tuple[str, str]]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text at byte {error.start}") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from None
    heading = _HEADING.match(text) if file.suffix == ".md" else None
    yield (heading[1], text[heading.end() :]) if heading else (file.stem, text)


def _rows(file: Path) -> Iterator[tuple[str, str]]:
    rows = open_rows(str(file))
    for number, row in enumerate(rows.scan(len(rows))):
        if (document := _document(row)) is None:
            keys = ", ".join(row) or "none"
            raise DataError(
                f"{rows.where(number)}: expected 'text' and maybe 'title', or 'contents' (a title, then a text), as"
                f" texts; its keys: {keys:.100}"
            )
        yield document


def _document(row: Row) -> tuple[str, str] | None:
    """Return (title, text) of a row. The column `contents` is the format of Search-R1's corpora."""
    if isinstance(contents := row.get("contents"), str):
        heading, _, rest = contents.partition("\n")
        return heading, rest
    title, text = row.get("title"), row.get("text")
    return (title or "", text) if isinstance(text, str) and isinstance(title, str | None) else None
