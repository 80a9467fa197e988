"""Metrics and warnings of a run by step. The files are read again when they change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from threading import Lock

from agentrl.telemetry.jsonl import METRICS_FILE, WARNINGS_FILE, read_metrics
from agentrl.telemetry.metrics import GROUPS, METRICS
from agentrl.telemetry.metrics.timing import STEP_S, TOKENS_PER_S
from agentrl.viewer.index import Stamp, stamp_of

DIGITS = 7
"""Significant digits sent to the page: enough for any screen."""


class Curves:
    """Cached contents of a run's metrics and warnings files."""

    def __init__(self, folder: Path) -> None:
        self._files = (folder / METRICS_FILE, folder / WARNINGS_FILE)
        self._read: tuple[tuple[Stamp | None, ...], Mapping[str, object]] | None = None
        self._lock = Lock()

    @property
    def version(self) -> str:
        """Text that changes when the metrics or warnings change."""
        return "-".join(f"{stamp[0]}.{stamp[1]}" if stamp else "none" for stamp in map(stamp_of, self._files))

    @property
    def exist(self) -> bool:
        """Whether the run has already written metrics."""
        return self._files[0].exists()

    def read(self) -> Mapping[str, object]:
        """Return `steps`, `axes` (see `_axes`), `series` (metric -> values by step, null if missing) and `warnings`."""
        stamps = tuple(map(stamp_of, self._files))
        with self._lock:
            if self._read is None or self._read[0] != stamps:
                self._read = stamps, _curves(list(_rows(self._files[0])), list(_rows(self._files[1])))
            return self._read[1]


def _curves(rows: Sequence[Mapping[str, object]], warnings: Sequence[Mapping[str, object]]) -> dict[str, object]:
    names = dict.fromkeys(name for row in rows for name in row if name != "step")
    return {
        "steps": [row["step"] for row in rows],
        "axes": _axes(rows),
        "series": {name: [_number(row.get(name)) for row in rows] for name in names},
        "warnings": [{"step": row["step"], "text": str(row.get("warning", ""))} for row in warnings],
    }


def overview() -> dict[str, list[str]]:
    """Return the metrics of the overview and the prefixes of the metric groups below it, both in display order."""
    placed = sorted((metric.viewer, metric.name) for metric in METRICS if metric.viewer is not None)
    return {"metrics": [name for _, name in placed], "groups": list(GROUPS)}


def _axes(rows: Sequence[Mapping[str, object]]) -> dict[str, list[float]]:
    """Total training seconds and tokens up to each step, if the run measured them."""
    seconds = [_number(row.get(STEP_S.name)) or 0.0 for row in rows]
    tokens = [(_number(row.get(TOKENS_PER_S.name)) or 0.0) * each for row, each in zip(rows, seconds, strict=True)]
    measured = {"time": seconds, "tokens": tokens}
    return {name: [_number(sum_) or 0.0 for sum_ in accumulate(each)] for name, each in measured.items() if any(each)}


def _rows(path: Path) -> Iterator[Mapping[str, object]]:
    """Yield the rows that have a step."""
    if path.exists():
        yield from (row for row in read_metrics(path) if isinstance(row, dict) and isinstance(row.get("step"), int))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")
