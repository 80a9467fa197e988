"""TensorBoard tracker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import indent

from torch.utils.tensorboard import SummaryWriter

from agentrl.telemetry.base import Generation, TrackedRun


class TensorBoardTracker:
    """Writes scalars and texts with TensorBoard's writer.

    Args:
        resumed_at: the step from which the run resumes. TensorBoard hides data of later steps. None: hide nothing.
            -1: hide all earlier data.
    """

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        purge_step = None if resumed_at is None else resumed_at + 1
        self._writer = SummaryWriter(str(folder), purge_step=purge_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def log_generations(self, step: int, generations: Sequence[Generation]) -> None:
        """Write one text per generation."""
        for number, each in enumerate(generations):
            self._writer.add_text(f"val/generation_{number}", _verbatim(asdict(each)), step)

    def close(self) -> None:
        """Write buffered data and close the writer."""
        self._writer.close()


def _verbatim(values: Mapping[str, object]) -> str:
    """Format each value as a Markdown code block, so that model output is not interpreted as markup."""
    return "\n\n".join(f"{name}:\n\n{indent(str(value), ' ' * 4, lambda _: True)}" for name, value in values.items())


def open_tracker(run: TrackedRun) -> TensorBoardTracker:
    """Open the tracker of a run's `tensorboard` folder."""
    return TensorBoardTracker(run.folder / "tensorboard", run.resumed_at)
