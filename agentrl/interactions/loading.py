"""Loads simulated users from YAML, in verl's format."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pydantic import JsonValue, ValidationError

from agentrl.errors import AgentRLError, ConfigError, suggestion
from agentrl.interactions.base import BaseInteraction, interactions
from agentrl.registry import make_importable
from agentrl.utils.user_code import format_error
from agentrl.utils.verl_classes import INTERACTIONS, replaced
from agentrl.utils.yaml_list import check_keys, entry_errors, read_listing

_KEYS = frozenset({"name", "class_name", "config"})


def load_interactions(path: Path) -> dict[str, BaseInteraction]:
    """Return name -> interaction. The default name comes from the class, as in verl (`MyInteraction` -> my).

    `class_name` names a built-in user or a class. An entry without `class_name` must have the `name` of a built-in
    user.

    Raises:
        ConfigError: an entry is invalid; the message names file, entry and key.
    """
    users: dict[str, BaseInteraction] = {}
    make_importable(path.parent)
    for position, entry in enumerate(read_listing(path, "interaction")):
        with entry_errors(f"{path}: interaction[{position}]"):
            user = _build(entry)
            if user.name in users:
                raise ConfigError.keyless(f"two interactions have the name '{user.name}'")
        users[user.name] = user
    return users


def _build(entry: dict[str, object]) -> BaseInteraction:
    check_keys(entry, _KEYS)
    named, config = str(entry.get("class_name") or entry.get("name") or ""), entry.get("config") or {}
    if not isinstance(config, dict):
        raise ConfigError.keyless(f"'config' must be a mapping, not {config!r:.100}")
    if "class_name" not in entry and named not in interactions.names():
        known = suggestion(named, interactions.names())
        raise ConfigError.keyless(f"needs a 'class_name', or the 'name' of a built-in user: {known}")
    target = replaced(named, INTERACTIONS, f"{BaseInteraction.__module__}.BaseInteraction")
    name = str(entry.get("name") or _default_name(named))
    interaction = _instantiate(interactions.get(target), named, {**config, "name": name})
    interaction.name = name
    return interaction


def _default_name(class_name: str) -> str:
    if class_name in interactions.names():
        return class_name
    return re.split("[.:]", class_name)[-1].removesuffix("Interaction").lower()


def _instantiate(cls: Callable[..., BaseInteraction], named: str, config: dict[str, JsonValue]) -> BaseInteraction:
    try:
        interaction = cls(config)
    except (AgentRLError, ValidationError):
        raise
    except Exception as error:  # the constructor is user code, which may raise any error
        raise ConfigError.keyless(f"{named} failed: {format_error(error)}") from error
    own = getattr(type(interaction), "generate_response", None)
    if own in (None, BaseInteraction.generate_response):
        raise ConfigError.keyless(
            f"'{named}' must define generate_response, like agentrl.interactions.base.BaseInteraction"
        )
    return interaction
