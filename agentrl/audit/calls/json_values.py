"""JSON values in a model's text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from agentrl.audit.calls.parsed import Call, storable
from agentrl.audit.reading.run_info import Json


def first_json(text: str, start: int = 0) -> tuple[Json, int]:
    """Skip whitespace; return the JSON value at `start` and the value's end; (None, 0) if there is no valid value."""
    try:
        value, end = _DECODER.raw_decode(text, after_blanks(text, start))
    except (ValueError, RecursionError):
        return None, 0
    return (None, 0) if _is_too_deep(value) else (value, end)


def after_blanks(text: str, start: int) -> int:
    """Position of the first character at or after `start` that is not whitespace."""
    found = _NOT_BLANK.search(text, start)
    return found.start() if found else len(text)


def only_json(text: str) -> tuple[Json, bool]:
    """Return the JSON value of the entire text, and whether the text is JSON."""
    value, end = first_json(text)
    return (value, True) if end and not text[end:].strip() else (None, False)


def json_object(value: Json) -> Mapping[str, Json] | None:
    """Parse `value` if it is text. Return the result if it is an object without non-finite numbers, else None."""
    return finite_object(only_json(value)[0] if isinstance(value, str) else value)


def finite_object(value: Json) -> Mapping[str, Json] | None:
    """Return `value` if it is an object without non-finite numbers, else None."""
    try:
        return value if isinstance(value, dict) and json.dumps(value, allow_nan=False) else None
    except (ValueError, RecursionError):
        return None


def named_call(value: Json, text: str, *keys: str) -> Call:
    """Return the call that a JSON object describes.

    The arguments of the call are the value of the first key in `keys` that exists in the object.
    """
    fields = value if isinstance(value, dict) else {}
    name = fields.get("name")
    name = name if isinstance(name, str) and storable(name) else ""
    written = [fields[key] for key in keys if key in fields]
    return Call(name, json_object(written[0]) if name and written else None, text)


def _is_too_deep(value: Json) -> bool:
    """Whether a value is nested deeper than 100 levels; a call with such a value counts as malformed."""
    level, depth = [value], 0
    while level and depth <= 100:
        inner = [each for each in level if isinstance(each, dict | list)]
        level = [item for each in inner for item in (each.values() if isinstance(each, dict) else each)]
        depth += 1
    return bool(level)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_NOT_BLANK = re.compile(r"\S")
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
