"""The configuration saved in a run folder, and its differences from another configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import yaml
from pydantic import JsonValue

from agentrl.errors import DataError
from agentrl.run_folder.layout import CONFIG_FILE

Change: TypeAlias = tuple[str, JsonValue, JsonValue]

_FREE = tuple(f"trainer.{name}" for name in ("default_local_dir", "resume_mode", "resume_from_path"))
"""Keys that may differ in a resumed run: the folder's location, and the keys for resuming."""


def read_config(path: Path) -> dict[str, JsonValue]:
    """Read the saved configuration of a run; empty if there is none.

    Raises:
        DataError: the file is not valid YAML.
    """
    if not path.is_file():
        return {}
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not readable YAML: {str(error).splitlines()[0]}") from error
    return config if isinstance(config, dict) else {}


def config_in(folder: Path) -> dict[str, JsonValue]:
    """Read the saved configuration of the run in `folder`, with paths updated if the folder was moved.

    Raises:
        DataError: the file is not valid YAML.
    """
    kept = read_config(folder / CONFIG_FILE)
    trainer = kept.get("trainer")
    before = trainer.get("default_local_dir") if isinstance(trainer, dict) else None
    if not isinstance(before, str) or not Path(before).is_absolute():
        return kept
    return {name: _moved(value, before, str(folder.absolute())) for name, value in kept.items()}


def changes(before: Mapping[str, JsonValue], now: Mapping[str, JsonValue]) -> Iterator[Change]:
    """Yield (key, value before, value now) for keys in both configurations whose values differ."""
    old, new = dict(leaves(before)), dict(leaves(now))
    for key in old.keys() & new.keys() - set(_FREE):
        if old[key] != new[key] and _absolute(old[key]) != _absolute(new[key]):
            yield key, old[key], new[key]


def leaves(values: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Yield each value with its dotted key."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _moved(value: JsonValue, before: str, now: str) -> JsonValue:
    if isinstance(value, dict):
        return {name: _moved(each, before, now) for name, each in value.items()}
    if isinstance(value, list):
        return [_moved(each, before, now) for each in value]
    if isinstance(value, str) and (value == before or value.startswith(f"{before}/")):
        return now + value.removeprefix(before)
    return value


def _absolute(value: JsonValue) -> JsonValue:
    """Make paths absolute: runs of earlier versions saved paths as they were typed."""
    if isinstance(value, list):
        return [_absolute(each) for each in value]
    return str(Path(value).absolute()) if isinstance(value, str) else value
