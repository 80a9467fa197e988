"""A folder that holds a run already: may this run go on in it, and what is different from what the run began with?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pydantic import JsonValue

from agentrl.config import RunConfig
from agentrl.config.document import redacted
from agentrl.errors import ConfigError
from agentrl.trainer.checkpoint import CHECKPOINTS, LATEST, has_latest
from agentrl.trainer.report import CONFIG_FILE, read_config
from agentrl.trainer.source_parts import TRAJECTORIES, stored_steps

Change: TypeAlias = tuple[str, JsonValue, JsonValue]

FIXED = (
    "model.path",
    "model.lora_rank",
    "model.lora_alpha",
    "model.target_modules",
    "model.exclude_modules",
    "model.lora_adapter_path",
    "data.train_files",
    "data.dataset_weights",
    "data.shuffle",
    "data.seed",
    "data.train_max_samples",
    "data.filter_overlong_prompts",
    "trainer.seed",
    "trainer.saved_rollouts",
)
"""What a run keeps for life: with another model or another order of the rows, its checkpoint would mean nothing."""

_FIXED_IF_FILTERED = ("data.max_prompt_length", "data.system_prompt")  # which rows are left out; others move up

_NAMES = ("model.path", "model.lora_adapter_path", "data.train_files", "trainer.saved_rollouts")
_SAVING = ("train", "train_only")  # modes that have checkpoints
_FREE = ("trainer.default_local_dir", "trainer.resume_mode")  # where the folder stands and how it is opened


def check_folder(config: RunConfig) -> None:
    """Refuse a folder that holds another run; where the run goes on, say which keys changed, one line each.

    Raises:
        ConfigError: the folder holds a run that this one would spoil, or a key of `FIXED` changed.
    """
    folder = config.trainer.run_dir
    if config.trainer.resume_mode == "disable" and (folder / CONFIG_FILE).exists():
        raise ConfigError(f"'{folder}' holds a run: set trainer.default_local_dir, or trainer.resume_mode=auto")
    kept = read_config(folder / CONFIG_FILE)
    _check_mode(config, kept)
    if config.trainer.mode in _SAVING:
        has_latest(folder / CHECKPOINTS)  # refuses one that is gone
    if _goes_on_from(config):
        changed = sorted(changes(kept, redacted(config)), key=lambda change: change[0])
        _check_fixed(folder, changed, _fixed(config))
        for key, before, now in changed:
            print(f"changed: {key} was {before} and is now {now}")


def how_to_go_on(config: RunConfig) -> str:
    """What to do about a run that ended too early."""
    if place := _goes_on_from(config):
        return f"stopped; the same command goes on from {place}"
    if config.trainer.mode in ("val_only", "rollout_only"):
        return "stopped; the same command begins anew"
    return "stopped before the first checkpoint (trainer.save_freq); the same command begins anew"


def _goes_on_from(config: RunConfig) -> str | None:
    """What this command would find in the run's folder and go on from."""
    folder, mode = config.trainer.run_dir, config.trainer.mode
    if mode == "rollout_only" and (steps := stored_steps(config)):
        return f"step {steps[-1]}, the last in {folder / TRAJECTORIES}"
    latest = folder / CHECKPOINTS / LATEST
    return str(latest.resolve()) if mode in _SAVING and latest.exists() else None


def changes(before: Mapping[str, JsonValue], now: Mapping[str, JsonValue]) -> Iterator[Change]:
    """(key, value before, value now) of the keys that both have and whose values differ."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    for key in old.keys() & new.keys() - set(_FREE):
        if old[key] != new[key]:
            yield key, old[key], new[key]


def _check_mode(config: RunConfig, kept: Mapping[str, JsonValue]) -> None:
    section = kept.get("trainer")
    before = section.get("mode", "train") if isinstance(section, dict) else config.trainer.mode
    if before not in (config.trainer.mode, "val_only"):  # a validation leaves nothing that could be spoilt
        raise ConfigError(
            f"'{config.trainer.run_dir}' holds a run of trainer.mode={before}: give trainer.mode={config.trainer.mode}"
            " a folder of its own (trainer.default_local_dir); model.path may be a checkpoint of that run"
        )


def _fixed(config: RunConfig) -> set[str]:
    filtered = _FIXED_IF_FILTERED if config.data.filter_overlong_prompts else ()
    counted_in_steps = ("data.train_batch_size",) if config.trainer.mode == "rollout_only" else ()
    return {*FIXED, *filtered, *counted_in_steps}


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
