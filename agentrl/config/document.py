"""Every key with its default and its sentence, and a run's configuration as it is kept."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import JsonValue
from pydantic_core import PydanticUndefined

from agentrl.config.run import RunConfig
from agentrl.config.validate import config_fields

_SECRET = re.compile(r"(secret|password|passwd|api_?key|auth|credential|access_?token)", re.IGNORECASE)


def describe_config() -> Iterator[tuple[str, str, str]]:
    """(key, default, sentence) of every key."""
    for key, field in config_fields():
        default = "(must be given)" if field.default is PydanticUndefined else str(field.get_default())
        yield key, default, field.description or ""


def redacted(config: RunConfig) -> dict[str, JsonValue]:
    """The whole configuration as plain values, with what looks like a secret taken out."""
    return {name: _redact(name, value) for name, value in config.model_dump(mode="json").items()}


def _redact(name: str, value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _redact(key, inner) for key, inner in value.items()}
    holds_secret = _SECRET.search(name) and not name.endswith("_env")  # a variable's name, which a run needs again
    return "(redacted)" if value and holds_secret else value
