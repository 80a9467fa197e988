"""metrics.jsonl: one JSON object a step."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

METRICS_FILE = "metrics.jsonl"


class JsonlTracker:
    """Appends a line a step and flushes it, so that a killed run keeps what it had.

    Args:
        resumed_at: drop what the file holds of later steps, and a half-written last line; None keeps the file as it
            is, -1 begins anew.
    """

    def __init__(self, path: Path, resumed_at: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if resumed_at is not None and path.exists():
            _drop_after(path, resumed_at)
        self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line; what JSON has no number for (NaN, infinities) becomes null."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_tracker(run_dir: Path, resumed_at: int | None = None) -> JsonlTracker:
    """The tracker of a run's metrics.jsonl."""
    return JsonlTracker(run_dir / METRICS_FILE, resumed_at)


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
    kept = [row for row in read_metrics(path) if row["step"] <= step]
    aside = path.with_suffix(".tmp")
    aside.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    aside.replace(path)  # at once: a reader sees the old rows or the new ones
