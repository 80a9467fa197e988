"""The metrics of a run, step by step, and its warnings; read again when their files change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock

from agentrl.telemetry.jsonl import METRICS_FILE, WARNINGS_FILE, read_metrics
from agentrl.viewer.index import Stamp, stamp_of

DIGITS = 7
"""Significant digits that are told: no screen shows more."""


class Curves:
    """Both files of one run's folder."""

    def __init__(self, folder: Path) -> None:
        self._files = (folder / METRICS_FILE, folder / WARNINGS_FILE)
        self._read: tuple[tuple[Stamp | None, ...], Mapping[str, object]] | None = None
        self._lock = Lock()

    @property
    def version(self) -> str:
        """Another one says other metrics or warnings."""
        return "-".join(f"{stamp[0]}.{stamp[1]}" if stamp else "none" for stamp in map(stamp_of, self._files))

    def read(self) -> Mapping[str, object]:
        """`steps`; `series`: for each metric a value a step, null where it has none; `warnings`: step and text."""
        stamps = tuple(map(stamp_of, self._files))
        with self._lock:
            if self._read is None or self._read[0] != stamps:
                self._read = stamps, _curves(list(_rows(self._files[0])), list(_rows(self._files[1])))
            return self._read[1]


def _curves(rows: Sequence[Mapping[str, object]], warnings: Sequence[Mapping[str, object]]) -> dict[str, object]:
    names = dict.fromkeys(name for row in rows for name in row if name != "step")
    return {
        "steps": [row["step"] for row in rows],
        "series": {name: [_number(row.get(name)) for row in rows] for name in names},
        "warnings": [{"step": row["step"], "text": str(row.get("warning", ""))} for row in warnings],
    }


def _rows(path: Path) -> Iterator[Mapping[str, object]]:
    """Those that are of a step."""
    if path.exists():
        yield from (row for row in read_metrics(path) if isinstance(row, dict) and isinstance(row.get("step"), int))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")
