"""Documentation of every key, and a run's configuration without secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import JsonValue
from pydantic_core import PydanticUndefined

from agentrl.config.base import Section
from agentrl.config.run import RunConfig
from agentrl.config.uses import Use, mark_of
from agentrl.config.validate import config_fields, section_of
from agentrl.security.redaction import is_secret_name, redacted_value


def describe_config() -> Iterator[tuple[str, str, str]]:
    """Yield (key, default, description) of every key."""
    for key, field in config_fields():
        default = "(must be given)" if field.default is PydanticUndefined else str(field.get_default())
        yield key, default, field.description or ""


def redacted(config: RunConfig) -> dict[str, JsonValue]:
    """Return the configuration as plain values, without secrets (`agentrl.security.redaction`)."""
    return without_secrets(config.model_dump(mode="json"))


def without_secrets(values: Mapping[str, JsonValue], section: type[Section] = RunConfig) -> dict[str, JsonValue]:
    """Return nested configuration values without secrets.

    The mark of a known key (`agentrl.config.uses`) says whether its value is secret. For an unknown key, its name
    decides.
    """
    result: dict[str, JsonValue] = {}
    for name, value in values.items():
        field = section.model_fields.get(name)
        inner = section_of(field) if field else None
        if inner and isinstance(value, dict):
            result[name] = without_secrets(value, inner)
        else:
            secret = mark_of(field).use is Use.SECRET if field and not inner else is_secret_name(name)
            result[name] = redacted_value(value, secret=secret)
    return result
