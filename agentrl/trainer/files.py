"""A run's folder: one run at a time, files that are whole or not there, and a disk that is full or fails."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.errors import AgentRLError, ConfigError

LOCK_FILE = ".lock"
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
    """Write a file aside and rename it, so that a reader, or a full disk, never leaves half of it."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
