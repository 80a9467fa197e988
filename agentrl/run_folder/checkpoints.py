"""Checkpoints on disk: the saved run state, the complete checkpoints, and the checkpoint that a run resumes from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config.trainer import TrainerConfig
from agentrl.data.order import Draw
from agentrl.errors import ConfigError, Kind, suggestion

CHECKPOINTS, STATE_FILE = "checkpoints", "run_state.json"
LATEST, BEST = "latest", "best"
SAVING = ("train", "train_only")
"""Values of `trainer.mode` whose runs save checkpoints."""

_STEP = re.compile(r"step-(\d+)")
_VERL = re.compile(r"global_step_(\d+)")


@dataclass(frozen=True, slots=True)
class Best:
    """The value of a validation metric at a step, for example the highest value of the run."""

    metric: str
    value: float
    step: int

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.4g} at step {self.step}"


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a run: the last finished step, the number of drawn tasks, and the best step so far.

    Attributes:
        pending: drawn tasks whose rollouts were running or finished, but not trained on.
        goal: the value of the `trainer.stop_when` metric at the last validation.
    """

    step: int
    position: int
    best: Best | None = None
    pending: tuple[Draw, ...] = ()
    goal: Best | None = None


def read_state(checkpoint: Path) -> RunState:
    """Read the run state saved in a checkpoint.

    Raises:
        ConfigError: the folder is not a complete checkpoint of a run.
    """
    try:
        state = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
        best, goal = (Best(**value) if (value := state.get(name)) else None for name in ("best", "goal"))
        pending = tuple(Draw(*draw) for draw in state.get("pending", ()))
        return RunState(state["step"], state["position"], best, pending, goal)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError.at(
            "trainer.resume_from_path",
            Kind.WRONG_VALUE,
            f"cannot resume from '{checkpoint}': {STATE_FILE}: {' '.join(str(error).split())}; name a complete"
            " checkpoint in"
            " trainer.resume_from_path, or set another trainer.default_local_dir",
        ) from None


def load_state(file: Path, take: Callable[[Any], None]) -> None:  # Any: any JSON a component wrote
    """Pass the JSON in `file` of a checkpoint to `take`; do nothing if the file does not exist.

    Raises:
        ConfigError: the file cannot be read, or `take` cannot use it.
    """
    if not file.exists():
        return
    try:
        take(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError.keyless(f"cannot resume from '{file.parent}': {file.name}: {reason}") from None


def read_best(run_dir: Path) -> Best | None:
    """Read the best step of the run in that folder; None if none was saved (`trainer.save_best`)."""
    link = run_dir / CHECKPOINTS / BEST
    return read_state(link).best if link.exists() else None


def checkpoints_of(run_dir: Path) -> Path:
    """Return the folder of a run's checkpoints. It may be a link to another disk; then return the link's target."""
    return (run_dir / CHECKPOINTS).resolve()


def step_folder(checkpoints: Path, step: int) -> Path:
    """Return the folder of the checkpoint of `step`."""
    return checkpoints / f"step-{step}"


def is_complete(checkpoint: Path) -> bool:
    """Return whether a checkpoint is complete: whether its state file can be read.

    The state file is written last. The folder gets its final name after all its files are synced to disk.
    """
    try:
        read_state(checkpoint)
    except ConfigError:
        return False
    return True


def saved_steps(checkpoints: Path) -> list[int]:
    """Return the steps that have a folder, complete or not, in ascending order."""
    return sorted(int(name[1]) for path in checkpoints.glob("step-*") if (name := _STEP.fullmatch(path.name)))


def complete_steps(checkpoints: Path) -> list[int]:
    """Return the steps that have a complete checkpoint, in ascending order."""
    return [step for step in saved_steps(checkpoints) if is_complete(step_folder(checkpoints, step))]


def newest(run_dir: Path) -> Path | None:
    """Return the newest complete checkpoint of the run in that folder; None if there is none.

    The link `latest` is ignored, because a kill after saving a checkpoint can leave the link one checkpoint behind.
    """
    folders = (step_folder(checkpoints_of(run_dir), step) for step in reversed(saved_steps(checkpoints_of(run_dir))))
    return next(filter(is_complete, folders), None)


def start_of(trainer: TrainerConfig) -> Path | None:
    """Return the checkpoint that a run resumes from; None for a new run.

    It is `trainer.resume_from_path`, or else the newest complete checkpoint in the run folder. Changing the link
    `latest` by hand has no effect.

    Raises:
        ConfigError: `resume_from_path` is not a complete checkpoint. Or the link `latest` exists, but there is no
            complete checkpoint; a new start would delete the records of the saved run.
    """
    if trainer.resume_mode == "path" and trainer.resume_from_path:
        return find_checkpoint(trainer.resume_from_path)
    if start := newest(trainer.run_dir):
        return start
    if (latest := checkpoints_of(trainer.run_dir) / LATEST).is_symlink():
        raise ConfigError.at(
            "trainer.resume_mode",
            Kind.NOT_FOUND,
            f"cannot resume: the link '{latest}' points to '{latest.readlink()}', which is missing or incomplete, and"
            " there is no other checkpoint; restore it, or set another trainer.default_local_dir",
        )
    return None


def find_checkpoint(path: Path) -> Path:
    """Return the folder of the checkpoint at `path`, which may be a link such as `latest`.

    Raises:
        ConfigError: `path` is not a complete checkpoint; the message suggests complete checkpoints near `path`.
    """
    if is_complete(path):
        return path.resolve()
    wanted = _VERL.sub(r"step-\1", path.name)
    near = (path / CHECKPOINTS, path, path.parent, path.parent / CHECKPOINTS)
    beside = next((folder for folder in near if complete_steps(folder)), path.parent)
    names = [str(step_folder(beside, step)) for step in complete_steps(beside)]
    theirs = (
        "; a checkpoint of verl cannot be resumed: load its weights with model.path"
        if (path / "actor").is_dir()
        else ""
    )
    raise ConfigError.at(
        "trainer.resume_from_path",
        Kind.NOT_FOUND,
        f"`trainer.resume_from_path`: '{path}' is not a complete checkpoint of a run:"
        f" {_nearest(str(beside / wanted), names)}{theirs}",
    )


def _nearest(wanted: str, names: list[str]) -> str:
    if wanted in names or not names:
        return suggestion(wanted, names)
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"
