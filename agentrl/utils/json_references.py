"""References inside a JSON schema: `{"$ref": "#/$defs/Point"}`."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from pydantic import JsonValue


def find_reference(schema: Mapping[str, JsonValue], reference: str) -> JsonValue:
    """Return the part of `schema` that `reference` names; None if the part does not exist or is in another document."""
    target: JsonValue = dict(schema) if reference.startswith("#") else None
    for part in unquote(reference[1:]).split("/")[1:]:
        target = _child(target, part.replace("~1", "/").replace("~0", "~"))
    return target


def _child(value: JsonValue, key: str) -> JsonValue:
    if isinstance(value, list):
        return value[int(key)] if key.isdecimal() and int(key[:9]) < len(value) else None
    return value.get(key) if isinstance(value, dict) else None
