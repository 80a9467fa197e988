"""Reads simulated users from YAML, in verl's format."""

from __future__ import annotations

from pathlib import Path

from agentrl.config.listing import check_keys, read_listing
from agentrl.errors import ConfigError, UnknownNameError
from agentrl.interactions.base import BaseInteraction
from agentrl.registry import load_object

_KEYS = frozenset({"name", "class_name", "config"})


def load_interactions(path: Path) -> dict[str, BaseInteraction]:
    """Name -> interaction. The name is the entry's, else derived from its class as verl does (`MyInteraction` -> my).

    Raises:
        ConfigError: names file, entry and key.
    """
    interactions: dict[str, BaseInteraction] = {}
    for position, entry in enumerate(read_listing(path, "interaction")):
        where = f"{path}: interaction[{position}]"
        check_keys(entry, _KEYS, where)
        interaction = _build(entry, where)
        if interaction.name in interactions:
            raise ConfigError(f"{where}: two interactions are called '{interaction.name}'")
        interactions[interaction.name] = interaction
    return interactions


def _build(entry: dict[str, object], where: str) -> BaseInteraction:
    class_name, config = str(entry.get("class_name", "")), entry.get("config") or {}
    if not class_name or not isinstance(config, dict):
        raise ConfigError(f"{where}: needs a 'class_name', and 'config' must be a mapping")
    if class_name.startswith("verl."):
        raise ConfigError(
            f"{where}: '{class_name}' belongs to verl: subclass agentrl.interactions.base.BaseInteraction"
        )
    name = str(entry.get("name") or class_name.rpartition(".")[2].removesuffix("Interaction").lower())
    try:
        cls = load_object(class_name)
        interaction: BaseInteraction = cls({**config, "name": name})
    except UnknownNameError as error:
        raise ConfigError(f"{where}: {error}") from error
    except Exception as error:  # whatever a user's constructor raises
        raise ConfigError(f"{where}: {class_name} failed: {type(error).__name__}: {error}") from error
    interaction.name = name
    return interaction
