"""Files and folders that are whole or not there at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from agentrl.errors import DataError

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
    sync_folder(path.parent)


def remove_parts(folder: Path) -> None:
    """Remove what killed writers left in `folder`, and make its names survive a loss of power."""
    for part in folder.glob(_ASIDE.format("*")):
        part.unlink()
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Put the names in `folder` on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name once that is done; a failure leaves nothing.

    Raises:
        DataError: there is something at `path` already, or its parent cannot be made.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise DataError(f"'{path}' is not an empty folder: name a new one")
    aside = path.absolute().with_name(_ASIDE.format(path.absolute().name))
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        yield aside
        aside.replace(path)
    except OSError as error:
        raise DataError(f"'{path}' cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    sync_folder(path.absolute().parent)
