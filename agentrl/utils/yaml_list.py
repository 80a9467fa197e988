"""YAML files that list tools or interactions, or describe one environment."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentrl.errors import AgentRLError, ConfigError, suggestion
from agentrl.security.environment import remember_environment


def read_listing(path: Path, key: str) -> list[dict[str, object]]:
    """Return the mappings listed under `key`, with interpolations such as `${oc.env:HOME}` resolved.

    Raises:
        ConfigError: the file is missing, is not YAML, has an empty list, or has another structure.
    """
    content = _content(path)
    if not isinstance(content, dict) or not isinstance(content.get(key), list):
        names = [str(name) for name in content] if isinstance(content, dict) else []
        raise ConfigError.keyless(f"{path}: expected a list under '{key}', found {', '.join(names) or 'no keys'}")
    if not content[key]:
        raise ConfigError.keyless(f"{path}: nothing is listed under '{key}'")
    for position, entry in enumerate(content[key]):
        if not isinstance(entry, dict):
            raise ConfigError.keyless(f"{path}: {key}[{position}] must be a mapping, not {entry!r}")
    return [{str(name): value for name, value in entry.items()} for entry in content[key]]


def read_mapping(path: Path) -> dict[str, object]:
    """Return the mapping in a YAML file, with interpolations resolved.

    Raises:
        ConfigError: the file is missing, is not YAML, or has another structure.
    """
    content = _content(path)
    if not isinstance(content, dict):
        raise ConfigError.keyless(f"{path}: expected a mapping")
    return {str(name): value for name, value in content.items()}


def _content(path: Path) -> object:
    from omegaconf import OmegaConf  # imported here because it is slow, and many runs do not need it

    remember_environment()
    if not path.is_file():
        raise ConfigError.keyless(f"there is no file '{path}'")
    try:
        return OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except Exception as error:  # yaml and omegaconf raise many types
        raise ConfigError.keyless(f"{path}: {' '.join(str(error).split())}") from error


@contextmanager
def entry_errors(where: str) -> Iterator[None]:
    """Turn errors in the block into a ConfigError whose lines start with file and entry."""
    try:
        yield
    except ValidationError as error:
        raise ConfigError.keyless(*(f"{where}: {line}" for line in map(_line, error.errors()))) from None
    except AgentRLError as error:
        raise ConfigError.keyless(f"{where}: {error}") from error


def _line(problem: ErrorDetails) -> str:
    key, text = ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")
    return f"'{key}': {text}" if key else text


def check_keys(entry: Mapping[str, object], allowed: Collection[str]) -> None:
    """Reject an unknown key and suggest the nearest allowed one."""
    for name in entry:
        if name not in allowed:
            raise ConfigError.keyless(f"unknown key '{name}': {suggestion(name, allowed)}")
