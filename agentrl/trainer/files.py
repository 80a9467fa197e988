"""A run's folder: one run at a time, files that are whole or not there, and a disk that is full."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.errors import AgentRLError, ConfigError

LOCK_FILE = ".lock"


class StorageError(AgentRLError):
    """The disk that a run writes to is full."""


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
def full_disk_in_one_line(folder: Path, how_to_go_on: Callable[[], str]) -> Iterator[None]:
    """Turn the system's error for a full disk into ours.

    Raises:
        StorageError: the disk is full, or a quota is used up.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        text = f"writing to '{folder}': {os.strerror(error.errno).lower()}; make room"
        raise StorageError(f"{text}. {how_to_go_on()}") from error


def write_whole(path: Path, text: str) -> None:
    """Write a file aside and rename it, so that a reader, or a full disk, never leaves half of it."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
