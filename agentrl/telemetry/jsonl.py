"""metrics.jsonl: one JSON object a step; generations.jsonl and warnings.jsonl beside it, where there are any."""

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
    """Appends a line a step and puts it on the disk, so that a killed run keeps what it had.

    Args:
        resumed_at: drop what the file holds of later steps, and a half-written last line; None keeps the file as it
            is, -1 begins anew.
    """

    def __init__(self, path: Path, resumed_at: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._beside = path.parent
        if resumed_at is not None:
            for file in (path, path.with_name(GENERATIONS_FILE), path.with_name(WARNINGS_FILE)):
                _drop_after(file, resumed_at)
        self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line; what JSON has no number for (NaN, infinities) becomes null."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
        _sync(self._file)

    def log_generations(self, step: int, generations: Sequence[Generation]) -> None:
        """Append one line a generation to generations.jsonl."""
        self._append(GENERATIONS_FILE, [{"step": step, **asdict(each)} for each in generations])

    def log_warning(self, step: int, text: str) -> None:
        """Append one line to warnings.jsonl."""
        self._append(WARNINGS_FILE, [{"step": step, "warning": text}])

    def _append(self, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        with (self._beside / name).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            _sync(file)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_tracker(run: TrackedRun) -> JsonlTracker:
    """The tracker of a run's metrics.jsonl."""
    return JsonlTracker(run.folder / METRICS_FILE, run.resumed_at)


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a metrics.jsonl; ends at a line that is not whole, as a run under way may leave one."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                return
            yield row


def _drop_after(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = [row for row in read_metrics(path) if row["step"] <= step]
    aside = path.with_suffix(".tmp")
    with aside.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in kept)
        _sync(file)
    aside.replace(path)  # at once: a reader sees the old rows or the new ones


def _sync(file: TextIO) -> None:
    """Onto the disk: a checkpoint that survives a loss of power counts on the rows before it."""
    file.flush()
    os.fsync(file.fileno())
