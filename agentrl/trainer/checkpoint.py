"""Checkpoints on disk: what says where a run stood, which of them are whole, and which one a run goes on from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config.trainer import TrainerConfig
from agentrl.data.order import Draw
from agentrl.errors import ConfigError, suggestion
from agentrl.trainer.parts import Best

CHECKPOINTS, STATE_FILE = "checkpoints", "run_state.json"
LATEST, BEST = "latest", "best"

_STEP = re.compile(r"step-(\d+)")
_VERL = re.compile(r"global_step_(\d+)")


@dataclass(frozen=True, slots=True)
class RunState:
    """Where a run stands: the step it is after, how many tasks it drew, and its best step so far.

    Attributes:
        pending: the tasks among those drawn that were in flight, or ready, and not trained on.
    """

    step: int
    position: int
    best: Best | None = None
    pending: tuple[Draw, ...] = ()


def read_state(checkpoint: Path) -> RunState:
    """Where the run stood when that checkpoint was saved.

    Raises:
        ConfigError: it is not a whole checkpoint of a run.
    """
    try:
        state = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
        best = state.get("best")
        pending = tuple(Draw(*draw) for draw in state.get("pending", ()))
        return RunState(state["step"], state["position"], Best(**best) if best else None, pending)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"cannot go on from '{checkpoint}': {STATE_FILE}: {' '.join(str(error).split())}; name a whole one in"
            " trainer.resume_from_path, or give the run another folder (trainer.default_local_dir)"
        ) from None


def recall(file: Path, take: Callable[[Any], None]) -> None:  # Any: whatever JSON a part wrote
    """Give `take` what a part kept in `file` of a checkpoint; without that file, nothing.

    Raises:
        ConfigError: it cannot be read, or `take` cannot use it.
    """
    if not file.exists():
        return
    try:
        take(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"cannot go on from '{file.parent}': {file.name}: {reason}") from None


def read_best(run_dir: Path) -> Best | None:
    """The best step of the run in that folder, where it kept one (`trainer.save_best`)."""
    link = run_dir / CHECKPOINTS / BEST
    return read_state(link).best if link.exists() else None


def checkpoints_of(run_dir: Path) -> Path:
    """Where a run's checkpoints stand, links resolved: that folder may lie on another disk."""
    return (run_dir / CHECKPOINTS).resolve()


def step_folder(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint of `step` stands."""
    return checkpoints / f"step-{step}"


def is_whole(checkpoint: Path) -> bool:
    """Whether a run may go on from there. The state is written last, and the folder named after all is on the disk."""
    try:
        read_state(checkpoint)
    except ConfigError:
        return False
    return True


def saved_steps(checkpoints: Path) -> list[int]:
    """The steps with a folder there, whole or not, ascending."""
    return sorted(int(name[1]) for path in checkpoints.glob("step-*") if (name := _STEP.fullmatch(path.name)))


def whole_steps(checkpoints: Path) -> list[int]:
    """Those of them that are whole."""
    return [step for step in saved_steps(checkpoints) if is_whole(step_folder(checkpoints, step))]


def newest(run_dir: Path) -> Path | None:
    """The newest whole checkpoint of the run in that folder; None where there is none.

    Wherever the link `latest` leads: a kill between the two leaves it a step behind.
    """
    folders = (step_folder(checkpoints_of(run_dir), step) for step in reversed(saved_steps(checkpoints_of(run_dir))))
    return next(filter(is_whole, folders), None)


def start_of(trainer: TrainerConfig) -> Path | None:
    """The checkpoint a run goes on from; None for a run that begins anew.

    That is what `resume_from_path` names, or else the newest of the run's folder. So a link `latest` that was set by
    hand does not take a run back.

    Raises:
        ConfigError: `resume_from_path` is no whole checkpoint; or `latest` is there and no whole one is: to begin anew
            would drop the records of what was saved.
    """
    if trainer.resume_mode == "path" and trainer.resume_from_path:
        return find_checkpoint(trainer.resume_from_path)
    if start := newest(trainer.run_dir):
        return start
    if (latest := checkpoints_of(trainer.run_dir) / LATEST).is_symlink():
        raise ConfigError(
            f"cannot go on: the link '{latest}' leads to '{latest.readlink()}', which is gone or not whole, and there"
            " is no other step; put that step back, or give the run another folder (trainer.default_local_dir)"
        )
    return None


def find_checkpoint(path: Path) -> Path:
    """The folder of the checkpoint at `path`, which may be a link such as `latest`.

    Raises:
        ConfigError: it is no whole checkpoint; names the nearest that is.
    """
    if is_whole(path):
        return path.resolve()
    wanted = _VERL.sub(r"step-\1", path.name)
    near = (path / CHECKPOINTS, path, path.parent, path.parent / CHECKPOINTS)
    beside = next((folder for folder in near if whole_steps(folder)), path.parent)
    names = [str(step_folder(beside, step)) for step in whole_steps(beside)]
    theirs = "; a checkpoint of verl's is none: model.path takes its weights" if (path / "actor").is_dir() else ""
    raise ConfigError(
        f"'trainer.resume_from_path': '{path}' is no whole checkpoint of a run{theirs}:"
        f" {_nearest(str(beside / wanted), names)}"
    )


def _nearest(wanted: str, names: list[str]) -> str:
    if wanted in names or not names:
        return suggestion(wanted, names)
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"
