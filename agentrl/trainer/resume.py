"""A folder that holds a run already: may this run go on in it, and what is different from what the run began with?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pydantic import JsonValue

from agentrl.config import RunConfig
from agentrl.config.document import redacted
from agentrl.errors import ConfigError
from agentrl.store.schema import TRAJECTORIES
from agentrl.trainer.checkpoint import LATEST, checkpoints_of, newest, saved_steps, start_of, step_folder
from agentrl.trainer.report import CONFIG_FILE, read_config
from agentrl.trainer.source_parts import stored_steps

Change: TypeAlias = tuple[str, JsonValue, JsonValue]

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
"""What a run keeps for life: with another model or another order of the rows, its checkpoint would mean nothing."""

_FIXED_IF_SAMPLED = (  # where it goes on is counted in steps; its rollouts are one sample
    "data.train_batch_size",
    *(f"rollout.{name}" for name in ("n", "temperature", "top_p", "top_k", "min_p")),
)
_FIXED_IF_FILTERED = ("data.max_prompt_length", "data.system_prompt")  # which rows are left out; others move up

_NAMES = ("model.path", "model.lora_adapter_path", "data.train_files", "trainer.saved_rollouts")
_SAVING = ("train", "train_only")  # modes that have checkpoints
_FREE = tuple(f"trainer.{name}" for name in ("default_local_dir", "resume_mode", "resume_from_path"))
"""Where the folder stands and how it is opened."""


def check_folder(config: RunConfig) -> None:
    """Refuse a folder that holds another run; where the run goes on, say from where, and which keys changed.

    Raises:
        ConfigError: the folder holds a run that this one would spoil, a key of `FIXED` changed, or what the run is to
            go on from is not whole.
    """
    folder = config.trainer.run_dir
    if config.trainer.resume_mode == "disable" and (folder / CONFIG_FILE).exists():
        raise ConfigError(f"'{folder}' holds a run: set trainer.default_local_dir, or trainer.resume_mode=auto")
    _check_mode(config, folder)
    if config.trainer.mode in _SAVING and (start := start_of(config.trainer)):
        _tell_start(start, folder)
        _check_changes(config, run_before(config))
    elif _goes_on_from(config):
        _check_changes(config, folder)


def run_before(config: RunConfig) -> Path:
    """The folder of the run that is gone on with: this one's, or where `resume_from_path` is another's, that."""
    folder = config.trainer.run_dir
    start, path = start_of(config.trainer) if config.trainer.mode in _SAVING else None, config.trainer.resume_from_path
    if start is None or path is None or start.parent == checkpoints_of(folder):
        return folder
    named = path.absolute().parent.parent  # its checkpoints may lie on another disk
    return named if (named / CONFIG_FILE).exists() else start.parent.parent


def how_to_go_on(config: RunConfig) -> str:
    """What to do about a run that ended too early."""
    if place := _goes_on_from(config):
        command = "trainer.resume_mode=auto" if config.trainer.resume_mode == "path" else "the same command"
        return f"stopped; {command} goes on from {place}"
    if config.trainer.mode in ("val_only", "rollout_only"):
        return "stopped; the same command begins anew"
    return "stopped before the first checkpoint (trainer.save_freq); the same command begins anew"


def _goes_on_from(config: RunConfig) -> str | None:
    """What this command would find in the run's folder and go on from."""
    folder, mode = config.trainer.run_dir, config.trainer.mode
    if mode == "rollout_only" and (steps := stored_steps(config)):
        return f"step {steps[-1]}, the last in {folder / TRAJECTORIES}"
    start = newest(folder) if mode in _SAVING else None
    return str(start) if start else None


def _tell_start(start: Path, folder: Path) -> None:
    """Say where the run in `folder` starts; another run's step may start one that has none of its own."""
    if start.parent == checkpoints_of(folder):
        _tell_passed_over(start, folder)
    elif own := newest(folder):
        raise ConfigError(
            f"'trainer.resume_from_path': '{start}' is another run's, and '{own.parent}' holds {own.name} of this one:"
            " trainer.resume_mode=auto goes on from that; trainer.default_local_dir names a folder for a new run"
        )
    else:
        print(f"starting from '{start}', of another run, whose records stay there")


def _tell_passed_over(start: Path, folder: Path) -> None:
    """Say where the link `latest`, or a folder that is not whole, would have led elsewhere."""
    if start != newest(folder):
        return  # asked to go back
    latest = start.parent / LATEST
    if latest.is_symlink() and latest.readlink().name != start.name:
        print(
            f"'{latest}' led to {latest.readlink().name}, and {start.name} is the newest that is whole: going on from"
            " there (trainer.resume_mode=path goes on from another)"
        )
    there = [step_folder(start.parent, step) for step in saved_steps(start.parent)]
    for passed in there[there.index(start) + 1 :]:
        print(f"'{passed}' is not whole, and passed over")


def changes(before: Mapping[str, JsonValue], now: Mapping[str, JsonValue]) -> Iterator[Change]:
    """(key, value before, value now) of the keys that both have and whose values differ."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    for key in old.keys() & new.keys() - set(_FREE):
        if old[key] != new[key]:
            yield key, old[key], new[key]


def _check_mode(config: RunConfig, folder: Path) -> None:
    section = read_config(folder / CONFIG_FILE).get("trainer")
    before = section.get("mode", "train") if isinstance(section, dict) else config.trainer.mode
    if before not in (config.trainer.mode, "val_only"):  # a validation leaves nothing that could be spoilt
        raise ConfigError(
            f"'{folder}' holds a run of trainer.mode={before}: give trainer.mode={config.trainer.mode}"
            " a folder of its own (trainer.default_local_dir); model.path may be a checkpoint of that run"
        )


def _fixed(config: RunConfig) -> set[str]:
    filtered = _FIXED_IF_FILTERED if config.data.filter_overlong_prompts else ()
    sampled = _FIXED_IF_SAMPLED if config.trainer.mode == "rollout_only" else ()
    return {*FIXED, *filtered, *sampled}


def _check_changes(config: RunConfig, folder: Path) -> None:
    """Of the run in `folder`, which goes on: refuse what it keeps for life, and tell the rest."""
    _check_mode(config, folder)
    if not (kept := read_config(folder / CONFIG_FILE)):
        print(f"'{folder}' holds no {CONFIG_FILE}: what its run was configured with is not compared")
    changed = sorted(changes(kept, redacted(config)), key=lambda change: change[0])
    _check_fixed(folder, changed, _fixed(config))
    for key, before, now in changed:
        print(f"changed: {key} was {before} and is now {now}")


def _check_fixed(folder: Path, changed: Sequence[Change], fixed: Collection[str]) -> None:
    lines = [
        f"'{key}' was {before} and is now {now}, and the run in '{folder}' cannot go on with it: set"
        " trainer.default_local_dir for a new run"
        + (f", or, if both name the same, correct {CONFIG_FILE} there" if key in _NAMES else "")
        for key, before, now in changed
        if key in fixed
    ]
    if lines:
        raise ConfigError("\n".join(lines))


def _leaves(values: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
