"""A run's folder: one run at a time, files that are whole or not there, and a disk that is full or fails."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.errors import AgentRLError, ConfigError
from agentrl.store.whole import sync_folder, whole_file

LOCK_FILE = ".lock"
LEFTOVERS = (".partial", ".replaced", ".removed")
FULL = (errno.ENOSPC, errno.EDQUOT)
FAULTS = (*FULL, errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOLCK)
"""What only a disk or its file system says; other errors may be our own."""


class StorageError(AgentRLError):
    """The disk that a run writes to is full, fails, or may not be written to."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make `folder` and keep it to this process while inside; the kernel lets go when the process dies, however.

    Raises:
        ConfigError: another process is at work there, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK_FILE).open("a+")
    except OSError as error:
        raise ConfigError(f"'trainer.default_local_dir': cannot write to '{folder}': {error.strerror}") from None
    with file:  # closing it lets go
        _lock(file.fileno(), folder)
        yield


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(descriptor, 32, 0).decode() or "unknown"
        raise ConfigError(
            f"'{folder}' is in use by another run, process {pid}: wait for it or end it, or give this run a folder of"
            " its own (trainer.default_local_dir)"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())


@contextmanager
def disk_faults_in_one_line(folder: Path, how_to_go_on: Callable[[], str]) -> Iterator[None]:
    """Turn the system's error for a disk that is full, fails or is read-only into ours.

    Raises:
        StorageError: so it is, or the user has no right to a file of `folder`.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FAULTS and not _forbidden(error, folder):
            raise
        reason = f"{os.strerror(error.errno or 0).lower()}{'; make room' if error.errno in FULL else ''}"
        raise StorageError(f"writing to '{error.filename or folder}': {reason}. {how_to_go_on()}") from error


def _forbidden(error: OSError, folder: Path) -> bool:
    if not isinstance(error, PermissionError) or error.filename is None:
        return False
    return Path(str(error.filename)).resolve().is_relative_to(folder.resolve())


def write_whole(path: Path, text: str) -> None:
    """Write a file aside and rename it once it is on the disk, so that no reader, kill or full disk leaves half."""
    with whole_file(path) as file:
        file.write(text.encode())


def sync_tree(folder: Path) -> None:
    """Put every file and name beneath `folder` on the disk."""
    for root, _, names in os.walk(folder):
        for name in names:
            with (Path(root) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(root))


def remove_whole(folder: Path) -> None:
    """Rename it, then delete it: a kill leaves all of it, or what `remove_leftovers` finds."""
    aside = folder.with_name(f".{folder.name}.removed")
    folder.rename(aside)
    sync_folder(aside.parent)
    _delete(aside)


def remove_leftovers(folder: Path) -> None:
    """Delete what killed writers left in `folder`, and in the folders in it."""
    for path in folder.glob(".*"):
        if path.suffix in LEFTOVERS:
            _delete(path)
    for path in folder.glob("[!.]*/.*.partial"):
        path.unlink(missing_ok=True)  # a link leads there as well


def _delete(path: Path) -> None:
    path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
