"""Settings of the Python API: dotted or nested keys, and objects instead of names."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.errors import ConfigError, Kind
from agentrl.registry import give


def plain_settings(settings: Mapping[str, object] | None) -> dict[str, object]:
    """Replace each class or function by a name that is registered for it in this process.

    Raises:
        ConfigError: the settings are not a dictionary, or two different objects have the same name.
    """
    if not isinstance(settings, Mapping | None) or not all(isinstance(key, str) for key in settings or ()):
        raise ConfigError.keyless(f"settings must be a dict such as {{'rollout.n': 8}}, not {settings!r:.100}")
    named: dict[str, object] = {}
    return {key: _plain(value, key, named) for key, value in (settings or {}).items()}


def _plain(value: object, key: str, named: dict[str, object]) -> object:
    if isinstance(value, Mapping):
        return {name: _plain(inner, f"{key}.{name}", named) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, key, named) for inner in value]
    if not callable(value):
        return value
    name = give(value)
    if named.setdefault(name, value) is not value:
        text = f"settings: `{key}`: two different objects have the name '{name}': rename one"
        raise ConfigError.at(key, Kind.CONFLICT, text)
    return name


def nested(values: Mapping[str, object], into: Mapping[str, object] | None = None) -> dict[str, object]:
    """Convert {"a.b": 1} to {"a": {"b": 1}}, merged over `into`."""
    result = dict(into or {})
    for key, value in values.items():
        head, _, rest = key.partition(".")
        inner = {rest: value} if rest else value
        if isinstance(inner, Mapping):
            before = result.get(head)
            result[head] = nested(inner, before if isinstance(before, Mapping) else None)
        else:
            result[head] = inner
    return result
