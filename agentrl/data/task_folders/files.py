"""Packs files of a task folder as an archive for a sandbox. Nothing outside the folder is read."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from posixpath import basename, join

from agentrl.data.task_folders.dockerfile import Copy

MAX_BYTES, MAX_FILES = 24 * 2**20, 10_000
"""Limits of one archive, which is sent in one piece: total bytes of its files, and number of files."""
Member = tuple[str, Path, int | None]
"""(absolute path in the sandbox, path of the file or folder, new access rights or None to keep them)."""


class FilesError(Exception):
    """Files that cannot be packed; the message names the first such file and the reason."""


def folder_members(folder: Path, to: str) -> list[Member]:
    """Return the content of `folder`, to be copied to the folder `to`. A folder that does not exist has no content.

    Raises:
        FilesError: the folder is a link, contains links or devices, has too many files, or is too large.
    """
    if folder.is_symlink():
        raise FilesError(f"{folder}: a link")
    return _checked(_inside(folder, to, None)) if folder.exists() else []


def copied_members(step: Copy, context: Path) -> list[Member]:
    """Return the files and folders that a COPY line copies from `context`, the folder of the Dockerfile.

    Raises:
        FilesError: a file does not exist or is outside `context`, or an error of `folder_members` occurs.
    """
    found = [path for source in step.sources for path in _matches(context, source)]
    into_folder = step.to.endswith("/") or len(found) > 1
    to = step.to.rstrip("/") or "/"
    members: list[Member] = []
    for path in found:
        if path.is_dir():
            members += [(to, path, step.mode)] if to != "/" else []
            members += _inside(path, to, step.mode)
        else:
            members.append((join(to, path.name) if into_folder else to, path, step.mode))
    return _checked(members)


def pack(members: Sequence[Member]) -> bytes:
    """Return a tar archive of `members`, with names relative to the root of the sandbox.

    Raises:
        FilesError: a file cannot be read.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path, mode in members:
            try:
                _add(archive, name, path, mode)
            except OSError as error:
                raise FilesError(f"{path}: {error.strerror}") from error
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, path: Path, mode: int | None) -> None:
    found = path.lstat()
    info = tarfile.TarInfo(name.lstrip("/"))
    info.mode = stat.S_IMODE(found.st_mode) & 0o777 if mode is None else mode
    if stat.S_ISDIR(found.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, info.mode | 0o700
        archive.addfile(info)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # by now, the file may be a link or a pipe
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def _inside(folder: Path, to: str, mode: int | None) -> Iterator[Member]:
    """Yield the content of a folder, sorted by name; each subfolder comes before its own content."""
    try:
        entries = sorted(os.scandir(folder), key=lambda each: each.name)
    except OSError as error:
        raise FilesError(f"{folder}: {error.strerror}") from error
    for entry in entries:
        path = Path(entry.path)
        yield join(to, entry.name), path, mode
        if entry.is_dir(follow_symlinks=False):
            yield from _inside(path, join(to, entry.name), mode)


def _checked(members: Sequence[Member] | Iterator[Member]) -> list[Member]:
    checked, num_bytes = list[Member](), 0
    for member in members:
        found = member[1].lstat()
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            raise FilesError(f"{member[1]}: neither a file nor a folder (links and devices are not copied)")
        num_bytes += found.st_size if stat.S_ISREG(found.st_mode) else 0
        checked.append(member)
        if len(checked) > MAX_FILES or num_bytes > MAX_BYTES:
            raise FilesError(f"{member[1].parent}: more than {MAX_FILES} files or {MAX_BYTES} bytes")
    return checked


def _matches(context: Path, source: str) -> list[Path]:
    """Return the paths that match a source of a COPY line, which is a path or a pattern."""
    found = [context]
    for part in (each for each in source.split("/") if each not in ("", ".")):
        if part == "..":
            raise FilesError(f"'{source}' is outside the folder of the Dockerfile")
        found = [path for folder in found for path in _entries(folder, part)]
    if not found:
        raise FilesError(f"{context}: no file '{source}'")
    if any(path.is_symlink() for path in found):
        raise FilesError(f"{context}: '{basename(source)}' is a link")
    return found


def _entries(folder: Path, part: str) -> list[Path]:
    if not folder.is_dir() or folder.is_symlink():
        return []
    return [path for path in sorted(folder.iterdir()) if path.name == part or fnmatchcase(path.name, part)]
