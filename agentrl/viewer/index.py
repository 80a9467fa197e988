"""The summaries of all rollouts of a run, in memory: read file by file in the background, newest first, and kept up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Event, Lock, Thread

import pyarrow as pa

from agentrl.errors import AgentRLError
from agentrl.store import TrajectoryStore
from agentrl.viewer.summary import SUMMARY, summarize

LOOKS_EVERY_S = 1.0
JOINS_EVERY_S = 0.5
"""While many files are read: joining their rows costs more than reading one more."""

Stamp = tuple[int, int]
"""Size and time of change: another stamp is another content."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One file that was read, or could not be; read anew it is another part."""

    path: Path
    split: str
    step: int
    stamp: Stamp
    rows: pa.Table = field(default_factory=SUMMARY.empty_table)
    problem: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What is known at one moment.

    Attributes:
        version: another one says other rows.
        parts: in the order of the rows: the newest step first.
        num_files: that there are; those read so far are `parts`.
        trouble: why files cannot be looked for, if so.
    """

    version: int
    parts: Sequence[Part]
    table: pa.Table
    num_files: int
    trouble: str = ""

    @property
    def problems(self) -> list[str]:
        """A line for each file that cannot be read, and for what else is wrong."""
        return [line for line in (self.trouble, *(part.problem for part in self.parts)) if line]


class Index:
    """Looks for files every second and reads what is new; one thread writes, any number read.

    Args:
        folders: finds the folder of each split, anew each time: a run may only just have begun.
    """

    def __init__(self, folders: Callable[[], Mapping[str, Path]]) -> None:
        self._folders = folders
        self._parts: dict[Path, Part] = {}
        self._num_files = 0
        self._version = 0
        self._trouble = ""
        self._changed = Condition(Lock())
        self._ended = Event()
        self._snapshot = Snapshot(0, [], SUMMARY.empty_table(), 0)
        self._joined_at = 0.0
        self._thread = Thread(target=self._keep_up, name="index", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Stop; returns once the file at hand is read."""
        self._ended.set()
        self._thread.join()

    def wait(self, timeout_s: float, whole: bool = False) -> None:
        """Until some file was read, or the `whole` folder, or time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._version and (not whole or self._is_whole), timeout_s)

    def snapshot(self) -> Snapshot:
        """All that was read so far; of a folder that is still being read for the first time, a little less."""
        with self._changed:
            now = time.monotonic()
            behind = self._snapshot.version != self._version
            if behind and (self._is_whole or not self._snapshot.parts or now - self._joined_at > JOINS_EVERY_S):
                self._snapshot, self._joined_at = self._joined(), now
            return self._snapshot

    @property
    def _is_whole(self) -> bool:
        return len(self._parts) >= self._num_files

    def _joined(self) -> Snapshot:
        parts = sorted(self._parts.values(), key=lambda part: (-part.step, part.split))
        tables = [SUMMARY.empty_table(), *(part.rows for part in parts)]
        table = pa.concat_tables(tables, promote_options="default").combine_chunks()
        return Snapshot(self._version, parts, table, self._num_files, self._trouble)

    def _keep_up(self) -> None:
        while not self._ended.is_set():
            try:
                self._look()
                self._say("")
            except Exception as error:  # any: the page would stand still without a word
                self._say(_line(error))
            self._ended.wait(LOOKS_EVERY_S)

    def _say(self, trouble: str) -> None:
        with self._changed:
            if trouble != self._trouble:
                self._trouble = trouble
                self._version += 1
                self._changed.notify_all()

    def _look(self) -> None:
        found = self._found()
        with self._changed:
            self._num_files = len(found)
            for path in self._parts.keys() - {part.path for part in found}:
                del self._parts[path]
                self._version += 1
            self._version = max(1, self._version)  # an empty folder was looked at, too
            self._changed.notify_all()
        for part in found:
            if self._ended.is_set():
                return
            known = self._parts.get(part.path)
            if known is None or known.stamp != part.stamp:
                read = _read(part)
                if stamp_of(part.path):  # else it went while it was read, which is nobody's mistake
                    self._keep(read)

    def _keep(self, part: Part) -> None:
        with self._changed:
            self._parts[part.path] = part
            self._version += 1
            self._changed.notify_all()

    def _found(self) -> list[Part]:
        """All files there are now, newest step first."""
        parts = [
            Part(path, split, step, stamp)
            for split, folder in self._folders().items()
            for step in TrajectoryStore(folder).steps
            if (stamp := stamp_of(path := folder / f"step-{step:06d}.parquet"))
        ]
        return sorted(parts, key=lambda part: -part.step)


def stamp_of(path: Path) -> Stamp | None:
    """None where there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _read(part: Part) -> Part:
    try:
        rows = summarize(part.path, part.split)
    except Exception as error:  # our own mistake too is said beside the file, and the others are read
        line = _line(error)
        problem = line if str(part.path) in line else f"{part.path}: {line}"
        return Part(part.path, part.split, part.step, part.stamp, problem=problem)
    return Part(part.path, part.split, part.step, part.stamp, rows)


def _line(error: Exception) -> str:
    kind = "" if isinstance(error, AgentRLError | OSError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split())}"
