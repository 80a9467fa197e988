"""A YAML file that lists parts: tools, interactions."""

from __future__ import annotations

from pathlib import Path

from agentrl.errors import ConfigError, suggestion


def read_listing(path: Path, key: str) -> list[dict[str, object]]:
    """The mappings listed under `key`, interpolations such as `${oc.env:HOME}` resolved.

    Raises:
        ConfigError: the file is not there, is not YAML, or holds something else.
    """
    from omegaconf import OmegaConf  # 50 ms that a run without such a file need not spend

    if not path.is_file():
        raise ConfigError(f"there is no file '{path}'")
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except Exception as error:  # yaml's and omegaconf's many
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not isinstance(content.get(key), list):
        names = [str(name) for name in content] if isinstance(content, dict) else []
        raise ConfigError(f"{path}: expected a list under '{key}', found {', '.join(names) or 'no keys'}")
    for position, entry in enumerate(content[key]):
        if not isinstance(entry, dict):
            raise ConfigError(f"{path}: {key}[{position}] must be a mapping, not {entry!r}")
    return [{str(name): value for name, value in entry.items()} for entry in content[key]]


def check_keys(entry: dict[str, object], allowed: frozenset[str], where: str) -> None:
    """Refuse keys that nobody reads, with the nearest one that is read."""
    for name in entry:
        if name not in allowed:
            raise ConfigError(f"{where}: unknown key '{name}': {suggestion(name, allowed)}")
