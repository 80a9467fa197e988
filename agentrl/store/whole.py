"""Files that are whole or not there at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_ASIDE = ".{}.partial"


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes its name once it is whole and on the disk; a kill at any moment leaves no part."""
    aside = path.with_name(_ASIDE.format(path.name))
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def remove_parts(folder: Path) -> None:
    """Remove what killed writers left in `folder`, and make its names survive a loss of power."""
    for part in folder.glob(_ASIDE.format("*")):
        part.unlink()
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
