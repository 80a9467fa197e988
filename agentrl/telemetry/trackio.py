"""Tracker for Trackio, Hugging Face's local dashboard (`trackio show --project agentrl`).

The environment variable TRACKIO_DIR sets the folder of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trackio

from agentrl.telemetry.base import Generation, TrackedRun, as_table


class TrackioTracker:
    """One trackio run; a resumed run continues the trackio run of the same name."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = trackio.init(
            project=run.project,
            name=run.name,
            config=dict(run.config),
            resume="allow" if run.resumed_at >= 0 else "never",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one row."""
        self._run.log(dict(metrics), step=step)

    def log_generations(self, step: int, generations: Sequence[Generation]) -> None:
        """Log a table."""
        columns, rows = as_table(generations)
        self._run.log({"val/generations": trackio.Table(columns=columns, data=rows)}, step=step)

    def close(self) -> None:
        """Write buffered data and finish the run."""
        self._run.finish()


open_tracker = TrackioTracker
