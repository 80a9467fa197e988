"""Files of a run folder: locking (one run at a time), atomic writes, and errors of a full or failing disk."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.errors import AgentRLError, ConfigError, Kind
from agentrl.utils.atomic_files import atomic_file, sync_folder

LOCK_FILE = ".lock"
_LEFTOVER = re.compile(r"\.+(step-\d+|latest|best)(\.(partial|replaced|removed))+")
FULL = (errno.ENOSPC, errno.EDQUOT)
FAULTS = (*FULL, errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOLCK)
"""Error numbers that only a disk or file system causes; other errors may be bugs."""
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP)


class StorageError(AgentRLError):
    """The disk that a run writes to is full, failing or not writable."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock `folder` for this process inside the `with` block. If the process dies, the kernel releases the lock.

    Forked children do not inherit the lock. The lock file is removed at the end.

    Raises:
        ConfigError: another process holds the lock, or the folder cannot be written.
    """
    descriptor = _locked_file(folder / LOCK_FILE)
    _HELD.add(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        if descriptor in _HELD:  # a forked child holds no lock
            _HELD.remove(descriptor)
            (folder / LOCK_FILE).unlink(missing_ok=True)
            os.close(descriptor)


_HELD: set[int] = set()
"""File descriptors of the locks that this process holds."""


def _forget_locks() -> None:
    """Close the locks in a forked child. Otherwise the folder stays locked if the run dies before the child."""
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_forget_locks)


def _locked_file(file: Path) -> int:
    while True:
        descriptor = _open_lock(file)
        try:
            _lock(descriptor, file.parent)
            if _is_at(descriptor, file):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another run has just released and removed this file


def _open_lock(file: Path) -> int:
    """Open the lock file. Links are not followed, because the file will be written."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        reason = "it is a link; remove it" if error.errno == errno.ELOOP else error.strerror
        raise ConfigError.at(
            "trainer.default_local_dir",
            Kind.WRONG_VALUE,
            f"`trainer.default_local_dir`: cannot write to '{file}': {reason}",
        ) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise ConfigError.at(
            "trainer.default_local_dir", Kind.WRONG_VALUE, f"'{file}' is not a lock file of a run; remove it"
        )
    return descriptor


def _is_at(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
        raise ConfigError.at(
            "trainer.default_local_dir",
            Kind.CONFLICT,
            f"'{folder}' is in use by another run, process {pid}: wait for that run or end it, or set another"
            " trainer.default_local_dir",
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        print(f"'{folder}' is on a file system without locks: do not start a second run in that folder")


@contextmanager
def disk_errors_in_one_line(folder: Path, how_to_continue: Callable[[], str]) -> Iterator[None]:
    """Convert system errors of a full, failing or read-only disk to `StorageError`.

    Raises:
        StorageError: a disk error occurred, or the user lacks permission for a file of `folder`.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FAULTS and not _forbidden(error, folder):
            raise
        reason = f"{os.strerror(error.errno or 0).lower()}{'; make room' if error.errno in FULL else ''}"
        raise StorageError(f"writing to '{error.filename or folder}': {reason}. {how_to_continue()}") from error


def _forbidden(error: OSError, folder: Path) -> bool:
    if not isinstance(error, PermissionError) or error.filename is None:
        return False
    return Path(str(error.filename)).resolve().is_relative_to(folder.resolve())


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to a temporary file, sync it to disk and rename it to `path`. No partial file is ever visible."""
    with atomic_file(path) as file:
        file.write(text.encode())


def sync_tree(folder: Path) -> None:
    """Sync all files and folders under `folder` to disk."""
    for root, _, names in os.walk(folder):
        for name in names:
            with (Path(root) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(root))


def remove_folder(folder: Path) -> None:
    """Rename a folder, then delete it. If the run is killed in between, `remove_leftovers` deletes the folder."""
    aside = folder.with_name(f".{folder.name}.removed")
    folder.rename(aside)
    sync_folder(aside.parent)
    delete(aside)


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files left by killed runs in `folder` and its step folders."""
    for path in folder.glob(".*"):
        if _LEFTOVER.fullmatch(path.name):
            delete(path)
    for step in folder.glob("step-*"):
        if not step.is_symlink():
            for path in step.glob(".*.partial"):
                delete(path)


def delete(path: Path) -> None:
    """Delete a file, a folder or a link, but never the target of a link."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
