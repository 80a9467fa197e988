"""The tracker: something that is told a run's metrics, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeAlias

from agentrl.registry import Registry


class Tracker(Protocol):
    """Is told the metrics of each step, once a step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of `step`; a value may be NaN."""
        ...

    def close(self) -> None:
        """Write what is still held back."""
        ...


TrackerFactory: TypeAlias = Callable[[Path, int | None], Tracker]
"""(folder of the run, the step it is resumed at or None) -> a tracker; what was kept of later steps is dropped."""

trackers: Registry[TrackerFactory] = Registry(
    "tracker",
    {"jsonl": "agentrl.telemetry.jsonl:open_tracker", "tensorboard": "agentrl.telemetry.tensorboard:open_tracker"},
)
