"""Tracker that writes metrics.jsonl, one JSON object per step, and generations.jsonl and warnings.jsonl if needed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from agentrl.telemetry.base import Generation, TrackedRun

METRICS_FILE, GENERATIONS_FILE, WARNINGS_FILE = "metrics.jsonl", "generations.jsonl", "warnings.jsonl"


class JsonlTracker:
    """Appends one line per step and flushes it to disk, so that a killed run loses no metrics.

    Args:
        resumed_at: the step from which the run resumes. Lines of later steps and damaged lines are removed from all
            three files. None: keep the files unchanged. -1: remove all lines.
    """

    _file: TextIO | None = None

    def __init__(self, path: Path, resumed_at: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._beside = path.parent
        if resumed_at is not None:
            for file in (path, path.with_name(GENERATIONS_FILE), path.with_name(WARNINGS_FILE)):
                _drop_after(file, resumed_at)
        self._path = path

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line; NaN and infinities become null, because JSON has no such numbers."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        text = json.dumps({"step": step, **finite}, allow_nan=False) + "\n"
        if self._file is None:
            self._file = _appending(self._path)
        self._file.write(text)
        _sync(self._file)

    def log_generations(self, step: int, generations: Sequence[Generation]) -> None:
        """Append one line per generation to generations.jsonl."""
        self._append(GENERATIONS_FILE, [{"step": step, **asdict(each)} for each in generations])

    def log_warning(self, step: int, text: str) -> None:
        """Append one line to warnings.jsonl."""
        self._append(WARNINGS_FILE, [{"step": step, "warning": text}])

    def _append(self, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        with _appending(self._beside / name) as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            _sync(file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def open_tracker(run: TrackedRun) -> JsonlTracker:
    """Open the tracker of a run's metrics.jsonl."""
    return JsonlTracker(run.folder / METRICS_FILE, run.resumed_at)


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a .jsonl file that have a step. Damaged lines, such as a half-written one, are skipped."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                yield row


def _drop_after(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = [row for row in read_metrics(path) if row["step"] <= step]
    if damaged := _num_lines(path) - len(list(read_metrics(path))):
        print(f"{path}: skipping {damaged} damaged lines")
    aside = path.with_suffix(".tmp")
    aside.unlink(missing_ok=True)  # not overwritten, because an existing file may be a link
    with aside.open("x", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in kept)
        _sync(file)
    aside.replace(path)  # atomic: a reader sees either the old file or the new file


def _num_lines(path: Path) -> int:
    """Count the complete lines; an incomplete last line does not count as damaged."""
    with path.open("rb") as file:
        return sum(line.endswith(b"\n") for line in file)


def _appending(path: Path) -> TextIO:
    """Open a file for appending; do not follow links."""
    return open(path, "a", encoding="utf-8", opener=_no_link)  # Path.open has no parameter `opener`


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _sync(file: TextIO) -> None:
    """Flush to disk, so that after a power loss no rows from before a checkpoint are missing."""
    file.flush()
    os.fsync(file.fileno())
