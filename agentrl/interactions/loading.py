"""Loads simulated users from YAML, in verl's format."""

from __future__ import annotations

import re
from pathlib import Path

from agentrl.errors import AgentRLError, ConfigError
from agentrl.interactions.base import BaseInteraction
from agentrl.registry import load_object, make_importable
from agentrl.utils.user_code import format_error
from agentrl.utils.yaml_list import check_keys, entry_errors, read_listing

_KEYS = frozenset({"name", "class_name", "config"})


def load_interactions(path: Path) -> dict[str, BaseInteraction]:
    """Return name -> interaction. The default name comes from the class, as in verl (`MyInteraction` -> my).

    Raises:
        ConfigError: an entry is invalid; the message names file, entry and key.
    """
    interactions: dict[str, BaseInteraction] = {}
    make_importable(path.parent)
    for position, entry in enumerate(read_listing(path, "interaction")):
        with entry_errors(f"{path}: interaction[{position}]"):
            interaction = _build(entry)
            if interaction.name in interactions:
                raise ConfigError.keyless(f"two interactions have the name '{interaction.name}'")
        interactions[interaction.name] = interaction
    return interactions


def _build(entry: dict[str, object]) -> BaseInteraction:
    check_keys(entry, _KEYS)
    class_name, config = str(entry.get("class_name", "")), entry.get("config") or {}
    if not class_name or not isinstance(config, dict):
        raise ConfigError.keyless("needs a 'class_name', and 'config' must be a mapping")
    if class_name.startswith("verl."):
        raise ConfigError.keyless(f"'{class_name}' belongs to verl: subclass agentrl.interactions.base.BaseInteraction")
    name = str(entry.get("name") or re.split("[.:]", class_name)[-1].removesuffix("Interaction").lower())
    cls = load_object(class_name)
    try:
        interaction: BaseInteraction = cls({**config, "name": name})
    except AgentRLError:
        raise
    except Exception as error:  # a user's constructor may raise anything
        raise ConfigError.keyless(f"{class_name} failed: {format_error(error)}") from error
    own = getattr(type(interaction), "generate_response", None)
    if own in (None, BaseInteraction.generate_response):
        raise ConfigError.keyless(
            f"'{class_name}' must define generate_response, as agentrl.interactions.base.BaseInteraction"
        )
    interaction.name = name
    return interaction
