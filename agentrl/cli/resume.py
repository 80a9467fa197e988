"""`agentrl train --resume RUN`: loads the saved configuration of the run and applies overrides."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from agentrl.cli.replay import nested_overrides
from agentrl.config import RunConfig, validate_config
from agentrl.config.rules.combinations import check_training
from agentrl.errors import ConfigError, Kind, Problem
from agentrl.run_folder.checkpoints import newest
from agentrl.run_folder.layout import CONFIG_FILE
from agentrl.run_folder.location import run_at
from agentrl.run_folder.saved_config import config_in, leaves
from agentrl.security.redaction import REDACTED


def resumed_config(options: argparse.Namespace) -> RunConfig:
    """Load and validate the configuration of the run in `options.resume`, with the overrides applied.

    The resumed run executes code that the saved configuration names.

    Raises:
        ConfigError: there is no run, a secret (never saved) is not given, or the keys do not fit together.
    """
    if options.verl or options.config_name or options.config_dir or options.config:
        raise ConfigError.keyless("--resume reads only agentrl keys (key=value), also for runs started with --verl")
    folder = _folder(options.resume)
    place: dict[str, object] = {"trainer": {"default_local_dir": str(folder), **_start(folder)}}
    values = _merged(_merged(config_in(folder), place), nested_overrides(options.overrides))
    _require_secrets(folder, values)
    config = validate_config(values)
    check_training(config, groups_of_one=True)  # the original run may have allowed groups of one
    return config


def _folder(path: Path) -> Path:
    folder = run_at(path).absolute()
    if not (folder / CONFIG_FILE).is_file():
        raise ConfigError.keyless(f"--resume: '{path}' contains no run: {CONFIG_FILE} is missing")
    return folder


def _start(folder: Path) -> dict[str, object]:
    """Return the values of `trainer.resume_mode` and `trainer.resume_from_path` that must change.

    A run without a checkpoint restarts, from the configured checkpoint if there is one.
    """
    if newest(folder):
        return {"resume_mode": "auto", "resume_from_path": None}
    trainer = config_in(folder).get("trainer")
    from_other = isinstance(trainer, dict) and trainer.get("resume_mode") == "path"
    return {} if from_other else {"resume_mode": "auto"}


def _merged(before: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    merged = dict(before)
    for name, value in changes.items():
        inner = merged.get(name)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(inner, value) if both else value  # type: ignore[arg-type]  # checked by `both`
    return merged


def _require_secrets(folder: Path, values: Mapping[str, JsonValue | object]) -> None:
    hidden = [key for key, value in leaves(values) if REDACTED in str(value)]  # type: ignore[arg-type]  # YAML values
    if hidden:
        why = f"'{folder / CONFIG_FILE}' contains no secrets"
        raise ConfigError(*(Problem(key, Kind.MISSING, f"{why}: give {key}=… on the command line") for key in hidden))
