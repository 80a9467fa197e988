"""Atomic writing of files and folders: a file or folder is complete or does not exist."""

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
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file for writing; it is renamed to `path` when complete and on disk. So `path` is never partial.

    A device, such as /dev/null or a terminal, is written directly, because a file must not replace the device.
    """
    if path.is_char_device():
        with path.open("wb") as file:
            yield file
        return
    aside = path.with_name(_ASIDE.format(path.name))
    try:
        aside.unlink(missing_ok=True)  # it may be a link created by another user
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove_parts(folder: Path) -> None:
    """Remove partial files of killed writers from `folder`, and flush its directory entries to disk."""
    for part in folder.glob(_ASIDE.format("*")):
        part.unlink()
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Flush the directory entries of `folder` to disk, so that they survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Create a folder to fill, which is renamed to `path` when complete. After a failure, no folder remains.

    Raises:
        DataError: `path` exists and is not an empty folder, or its parent cannot be created.
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
