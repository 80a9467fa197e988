"""Checks whether the run in a folder is finished. A finished run's folder is never changed."""

from __future__ import annotations

from pathlib import Path

from agentrl.config import RunConfig
from agentrl.config.trainer import StopWhen
from agentrl.run_folder.checkpoints import STATE_FILE, Best, newest
from agentrl.run_folder.layout import REPORT_FILE
from agentrl.store import TrajectoryStore
from agentrl.store.schema import TRAJECTORIES
from agentrl.trainer.protocols import Progress


def goal_reached(goal: Best | None, wanted: StopWhen | None) -> bool:
    """Return whether the last validation reached the goal of `trainer.stop_when`."""
    return bool(goal and wanted and goal.metric == wanted.metric and goal.value >= wanted.at_least)


def finished_step(config: RunConfig, progress: Progress, total_steps: int) -> int | None:
    """Return the last step of a finished run; None if a step or a file is missing, or the report is outdated."""
    step = _saved(config, "val") if config.trainer.mode == "val_only" else progress.latest_step
    if step is None or not (step >= total_steps or goal_reached(progress.goal, config.trainer.stop_when)):
        return None
    return step if _pages_are_written(config) else None


def _pages_are_written(config: RunConfig) -> bool:
    """Return whether the report is up to date and the output file exists.

    Both files are written after the last step. If the run was killed earlier, a file is missing or outdated.
    """
    folder, output = config.trainer.run_dir, config.data.output_path
    report, last = folder / REPORT_FILE, _last_file(config)
    written = report.is_file() and (last is None or report.stat().st_mtime_ns >= last.stat().st_mtime_ns)
    return written and (output is None or output.exists())


def _last_file(config: RunConfig) -> Path | None:
    split = {"val_only": "val", "rollout_only": "train"}.get(config.trainer.mode)
    if split is None:
        checkpoint = newest(config.trainer.run_dir)
        return checkpoint and checkpoint / STATE_FILE
    step = _saved(config, split)
    return None if step is None else _store(config, split).file(step)


def _saved(config: RunConfig, split: str) -> int | None:
    return max(_store(config, split).steps, default=None)


def _store(config: RunConfig, split: str) -> TrajectoryStore:
    return TrajectoryStore(config.trainer.run_dir / TRAJECTORIES / split)
