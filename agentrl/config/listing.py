"""A YAML file that lists parts: tools, interactions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from agentrl.errors import AgentRLError, ConfigError, suggestion


def read_listing(path: Path, key: str) -> list[dict[str, object]]:
    """The mappings listed under `key`, interpolations such as `${oc.env:HOME}` resolved.

    Raises:
        ConfigError: the file is not there, is not YAML, lists nothing, or holds something else.
    """
    from omegaconf import OmegaConf  # words load nothing heavy, and a run without such a file needs none of it

    if not path.is_file():
        raise ConfigError(f"there is no file '{path}'")
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except Exception as error:  # yaml's and omegaconf's many
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not isinstance(content.get(key), list):
        names = [str(name) for name in content] if isinstance(content, dict) else []
        raise ConfigError(f"{path}: expected a list under '{key}', found {', '.join(names) or 'no keys'}")
    if not content[key]:
        raise ConfigError(f"{path}: nothing is listed under '{key}'")
    for position, entry in enumerate(content[key]):
        if not isinstance(entry, dict):
            raise ConfigError(f"{path}: {key}[{position}] must be a mapping, not {entry!r}")
    return [{str(name): value for name, value in entry.items()} for entry in content[key]]


@contextmanager
def entry_errors(where: str) -> Iterator[None]:
    """Puts file and entry before what goes wrong inside, as a ConfigError of one line."""
    try:
        yield
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(f"{where}: '{'.'.join(map(str, problem['loc']))}': {problem['msg']}") from None
    except AgentRLError as error:
        raise ConfigError(f"{where}: {error}") from error


def check_keys(entry: Mapping[str, object], allowed: Collection[str]) -> None:
    """Refuse a key that nobody reads, with the nearest one that is read."""
    for name in entry:
        if name not in allowed:
            raise ConfigError(f"unknown key '{name}': {suggestion(name, allowed)}")
