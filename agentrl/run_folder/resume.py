"""Resuming: checks that a run can resume with this configuration; finds the checkpoint and the changed keys."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.config.document import redacted, without_secrets
from agentrl.errors import ConfigError, Kind, Problem
from agentrl.run_folder.checkpoints import (
    LATEST,
    SAVING,
    checkpoints_of,
    newest,
    read_state,
    saved_steps,
    start_of,
    step_folder,
)
from agentrl.run_folder.layout import CONFIG_FILE
from agentrl.run_folder.location import shown
from agentrl.run_folder.saved_config import Change, changes, config_in
from agentrl.security.visible_text import visible
from agentrl.store import TrajectoryStore
from agentrl.store.schema import TRAJECTORIES

FIXED = (
    "model.path",
    "model.lora_rank",
    "model.lora_alpha",
    "model.target_modules",
    "model.exclude_modules",
    "model.lora_adapter_path",
    "critic.path",
    "data.train_files",
    "data.dataset_weights",
    "data.shuffle",
    "data.seed",
    "data.train_max_samples",
    "data.filter_overlong_prompts",
    *(f"data.curriculum.{name}" for name in ("by", "values", "descending")),
    "data.online.max_tasks",
    "data.custom_cls.path",
    "data.custom_cls.name",
    "trainer.seed",
    "trainer.saved_rollouts",
)
"""Keys that must not change, because a checkpoint is invalid with another model or row order."""

# A rollout_only run computes its position in the data from the number of stored steps, and all its rollouts must have
# the same sampling parameters.
_FIXED_IF_SAMPLED = (
    "data.train_batch_size",
    *(f"rollout.{name}" for name in ("n", "temperature", "top_p", "top_k", "min_p")),
)
_FIXED_IF_FILTERED = ("data.max_prompt_length", "data.system_prompt")  # these keys decide which rows are dropped

_NAMES = ("model.path", "model.lora_adapter_path", "data.train_files", "trainer.saved_rollouts")


def check_folder(config: RunConfig) -> None:
    """Check that the run can resume; print the checkpoint it resumes from and the changed keys.

    Raises:
        ConfigError: the folder contains a run that this run would damage, a key of `FIXED` changed, or the checkpoint
            to resume from is incomplete.
    """
    folder = config.trainer.run_dir
    _check_mode(config, folder)
    if config.trainer.mode in SAVING and (start := start_of(config.trainer)):
        _print_start(start, folder)
        _print_missing(config, read_state(start).step)
        _check_changes(config, run_before(config))
    elif _resumes_from(config):
        _check_changes(config, folder)


def run_before(config: RunConfig) -> Path:
    """Return the folder of the resumed run: this run's folder, or, with `resume_from_path`, another run's folder."""
    folder = config.trainer.run_dir
    start, path = start_of(config.trainer) if config.trainer.mode in SAVING else None, config.trainer.resume_from_path
    if start is None or path is None or start.parent == checkpoints_of(folder):
        return folder
    named = path.absolute().parent.parent  # `start` has links resolved, so it may be on another disk
    return named if (named / CONFIG_FILE).exists() else start.parent.parent


def how_to_resume(config: RunConfig, in_python: bool = False) -> str:
    """Return one line that tells how to resume an interrupted run."""
    place, folder = _resumes_from(config), config.trainer.run_dir
    if not (folder / CONFIG_FILE).exists():
        return "stopped before the run began"
    if in_python:
        settings = {"trainer.default_local_dir": str(folder), "trainer.resume_mode": "auto"}
        command = f"settings |= {settings}"
    else:
        command = f"agentrl train --resume {shlex.quote(shown(folder))}"
    if place:
        return f"stopped; {command} resumes from {place}"
    return f"stopped before the first checkpoint; {command} starts the run again"


def _resumes_from(config: RunConfig) -> str | None:
    """Return the step or checkpoint in the run folder that resuming would start from; None if there is none."""
    folder, mode = config.trainer.run_dir, config.trainer.mode
    if mode == "rollout_only" and (steps := stored_steps(config)):
        return f"step {steps[-1]}"
    start = newest(folder) if mode in SAVING else None
    return start.name if start else None


def _print_missing(config: RunConfig, last: int) -> None:
    """Print the steps without stored rollouts; replay and view skip these steps."""
    stored = stored_steps(config)
    if missing := [str(step) for step in range(min(stored, default=last), last) if step not in stored]:
        print(f"'{shown(config.trainer.run_dir / 'trajectories/train')}' has no rollouts of step {', '.join(missing)}")


def _print_start(start: Path, folder: Path) -> None:
    """Print the checkpoint from which the run starts. Refuse another run's checkpoint if this run has checkpoints."""
    if start.parent == checkpoints_of(folder):
        _print_skipped(start, folder)
    elif own := newest(folder):
        raise ConfigError.at(
            "trainer.resume_from_path",
            Kind.CONFLICT,
            f"`trainer.resume_from_path`: '{start}' belongs to another run, but '{own.parent}' holds {own.name} of"
            " this run: set trainer.resume_mode=auto to resume from it, or trainer.default_local_dir for a new run",
        )
    else:
        print(f"starting from '{start}' of another run; that run's records are not copied")


def _print_skipped(start: Path, folder: Path) -> None:
    """Print notices about a wrong link `latest` and about the incomplete checkpoints that are skipped."""
    if start != newest(folder):
        return  # the user chose an earlier checkpoint
    latest = start.parent / LATEST
    if latest.is_symlink() and latest.readlink().name != start.name:
        print(
            f"'{latest}' pointed to {latest.readlink().name}, but the newest complete checkpoint is {start.name}:"
            " resuming from that checkpoint (to resume from another checkpoint, set trainer.resume_mode=path)"
        )
    there = [step_folder(start.parent, step) for step in saved_steps(start.parent)]
    for skipped in there[there.index(start) + 1 :]:
        print(f"skipping the incomplete checkpoint '{skipped}'")


def _check_mode(config: RunConfig, folder: Path) -> None:
    section = config_in(folder).get("trainer")
    before = section.get("mode", "train") if isinstance(section, dict) else config.trainer.mode
    if before not in (config.trainer.mode, "val_only"):  # a val_only run has no files that another mode could damage
        raise ConfigError.at(
            "trainer.mode",
            Kind.CONFLICT,
            f"'{folder}' holds a run of trainer.mode={before}: for trainer.mode={config.trainer.mode}, set another"
            " trainer.default_local_dir; model.path may be a checkpoint of that run",
        )


def _fixed(config: RunConfig) -> set[str]:
    filtered = _FIXED_IF_FILTERED if config.data.filter_overlong_prompts else ()
    sampled = _FIXED_IF_SAMPLED if config.trainer.mode == "rollout_only" else ()
    return {*FIXED, *filtered, *sampled}


def _check_changes(config: RunConfig, folder: Path) -> None:
    """Compare with the configuration of the run in `folder`: raise for changed fixed keys, print other changes."""
    _check_mode(config, folder)
    if not (kept := config_in(folder)):
        print(f"'{folder}' has no {CONFIG_FILE}: its configuration is not compared")
    changed = sorted(changes(without_secrets(kept), redacted(config)), key=lambda change: change[0])
    _check_fixed(folder, changed, _fixed(config))
    for key, before, now in changed:
        print(visible(f"changed: {key} was {before} and is now {now}"))


def _check_fixed(folder: Path, changed: Sequence[Change], fixed: Collection[str]) -> None:
    if problems := [_not_resumable(folder, *change) for change in changed if change[0] in fixed]:
        raise ConfigError(*problems)


def _not_resumable(folder: Path, key: str, before: object, now: object) -> Problem:
    text = (
        f"`{key}` was {before} and is now {now}, so the run in '{folder}' cannot be resumed: set"
        " trainer.default_local_dir for a new run"
    )
    names = f", or, if both values name the same files, correct {CONFIG_FILE} in that folder" if key in _NAMES else ""
    return Problem(key, Kind.CONFLICT, text + names)


def stored_steps(config: RunConfig) -> list[int]:
    """Return the steps whose rollouts are stored in the run folder."""
    return TrajectoryStore(config.trainer.run_dir / TRAJECTORIES / "train").steps
