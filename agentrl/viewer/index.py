"""In-memory index of a run's rollouts. A background thread reads the files, newest first, and checks for changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Event, Lock, Thread

import pyarrow as pa

from agentrl.errors import AgentRLError
from agentrl.store import TrajectoryStore
from agentrl.store.layout import EXCLUDED_SPLIT
from agentrl.viewer.summary import SUMMARY, summarize

LOOKS_EVERY_S = 1.0
JOINS_EVERY_S = 0.5
"""Minimum time between snapshots during reading: joining all rows for a snapshot is slower than reading a file."""

Stamp = tuple[int, int]
"""File size and modification time; a file with a different stamp is read again."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows of one file, or the error if the file cannot be read. A file that is read again becomes a new part."""

    path: Path
    split: str
    step: int
    stamp: Stamp
    rows: pa.Table = field(default_factory=SUMMARY.empty_table)
    problem: str = ""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Snapshot:
    """State of the index at one moment.

    Attributes:
        version: changes when the rows or the problems change.
        parts: in the order of the rows: newest step first.
        num_files: number of existing files; `parts` contains the files read so far.
        error_text: error while searching for files; "" without an error.
    """

    version: int
    parts: Sequence[Part]
    table: pa.Table
    num_files: int
    error_text: str = ""

    @property
    def num_dropped(self) -> int:
        """Number of rollouts of dropped groups, which no step trained on."""
        return sum(len(part.rows) for part in self.parts if part.split == EXCLUDED_SPLIT)

    @property
    def problems(self) -> list[str]:
        """One line per unreadable file, and one for `error_text`."""
        return [line for line in (self.error_text, *(part.problem for part in self.parts)) if line]


class Index:
    """Checks for new files every second and reads them. One thread writes; any number of threads may read.

    Args:
        folders: returns the folder of each split; called at each check, because a new run creates its folders later.
    """

    def __init__(self, folders: Callable[[], Mapping[str, Path]]) -> None:
        self._folders = folders
        self._parts: dict[Path, Part] = {}
        self._num_files = 0
        self._version = 0
        self._error_text = ""
        self._changed = Condition(Lock())
        self._ended = Event()
        self._snapshot = Snapshot(0, [], SUMMARY.empty_table(), 0)
        self._joined_at = 0.0
        self._thread = Thread(target=self._keep_up, name="index", daemon=True)

    def start(self) -> None:
        """Start the reading thread; do nothing if it is already running."""
        with self._changed:
            if self._thread.ident is None:
                self._thread.start()

    def close(self) -> None:
        """Stop the thread and wait until it has read its current file."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def wait(self, timeout_s: float, complete: bool = False) -> None:
        """Wait at most `timeout_s` seconds until the files are listed; with `complete`, until all files are read."""
        with self._changed:
            self._changed.wait_for(lambda: self._version and (not complete or self._is_complete), timeout_s)

    def snapshot(self) -> Snapshot:
        """The state of the index. While many files are being read, the snapshot may be slightly outdated."""
        with self._changed:
            now = time.monotonic()
            behind = self._snapshot.version != self._version
            if behind and (self._is_complete or not self._snapshot.parts or now - self._joined_at > JOINS_EVERY_S):
                self._snapshot, self._joined_at = self._joined(), now
            return self._snapshot

    @property
    def _is_complete(self) -> bool:
        return len(self._parts) >= self._num_files

    def _joined(self) -> Snapshot:
        parts = sorted(self._parts.values(), key=lambda part: (-part.step, part.split))
        tables = [SUMMARY.empty_table(), *(part.rows for part in parts)]
        table = pa.concat_tables(tables, promote_options="default").combine_chunks()
        return Snapshot(self._version, parts, table, self._num_files, self._error_text)

    def _keep_up(self) -> None:
        while not self._ended.is_set():
            try:
                self._look()
                self._set_error("")
            except Exception as error:  # any error: otherwise the page would stop updating silently
                self._set_error(_line(error))
            self._ended.wait(LOOKS_EVERY_S)

    def _set_error(self, error_text: str) -> None:
        with self._changed:
            if error_text != self._error_text:
                self._error_text = error_text
                self._version += 1
                self._changed.notify_all()

    def _look(self) -> None:
        found = self._found()
        with self._changed:
            self._num_files = len(found)
            for path in self._parts.keys() - {part.path for part in found}:
                del self._parts[path]
                self._version += 1
            self._version = max(1, self._version)  # an empty folder also counts as read
            self._changed.notify_all()
        for part in found:
            if self._ended.is_set():
                return
            known = self._parts.get(part.path)
            if known is None or known.stamp != part.stamp:
                read = _read(part)
                if stamp_of(part.path):  # otherwise the file was deleted during the read: not an error
                    self._keep(read)

    def _keep(self, part: Part) -> None:
        with self._changed:
            self._parts[part.path] = part
            self._version += 1
            self._changed.notify_all()

    def _found(self) -> list[Part]:
        """All existing files, newest step first."""
        parts = [
            Part(path, split, step, stamp)
            for split, folder in self._folders().items()
            for step in TrajectoryStore(folder).steps
            if (stamp := stamp_of(path := folder / f"step-{step:06d}.parquet"))
        ]
        return sorted(parts, key=lambda part: -part.step)


def stamp_of(path: Path) -> Stamp | None:
    """Return the stamp of a file; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _read(part: Part) -> Part:
    try:
        rows = summarize(part.path, part.split)
    except Exception as error:  # any error, even a bug: report it for this file and read the other files
        line = _line(error)
        problem = line if str(part.path) in line else f"{part.path}: {line}"
        return Part(part.path, part.split, part.step, part.stamp, problem=problem)
    return Part(part.path, part.split, part.step, part.stamp, rows)


def _line(error: Exception) -> str:
    kind = "" if isinstance(error, AgentRLError | OSError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split())}"
