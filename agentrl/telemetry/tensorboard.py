"""Event files for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter


class TensorBoardTracker:
    """Writes scalars with TensorBoard's own writer.

    Args:
        resumed_at: hide what the folder holds of later steps; None hides nothing.
    """

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        purge_step = None if resumed_at is None else resumed_at + 1
        self._writer = SummaryWriter(str(folder), purge_step=purge_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar a metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is held back."""
        self._writer.close()


def open_tracker(run_dir: Path, resumed_at: int | None = None) -> TensorBoardTracker:
    """The tracker of a run's `tensorboard` folder."""
    return TensorBoardTracker(run_dir / "tensorboard", resumed_at)
