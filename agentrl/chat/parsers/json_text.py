"""Parsing of JSON written by a model; each error becomes one sentence for the model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NoReturn

from pydantic import JsonValue

from agentrl.security.json_depth import is_too_deep


class BadJSONError(Exception):
    """Invalid JSON; the message contains the error and its position."""


def _refuse_constant(name: str) -> NoReturn:
    raise BadJSONError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


_BLANKS = re.compile(r"\s*")


def read_json(text: str, start: int = 0) -> tuple[JsonValue, int]:
    """Return the JSON value at `start` in `text`, after whitespace, and its end position.

    Raises:
        BadJSONError: invalid JSON; for a syntax error, the message has line and column in `text`, counted from 1.
    """
    blanks = _BLANKS.match(text, start)
    start = blanks.end() if blanks else start
    try:
        value: JsonValue
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        near = text[error.pos : error.pos + 20]
        where = f"line {error.lineno} column {error.colno}"
        raise BadJSONError(f"{error.msg} at {where}{f', near {near!r}' if near else ', where it ends'}") from None
    except RecursionError:
        raise BadJSONError("it is nested too deeply") from None
    except ValueError:  # Python limits the digits, because parsing a long integer needs quadratic time
        raise BadJSONError("a number in it is too long") from None
    if is_too_deep(value, text[start:end]):
        raise BadJSONError("it is nested too deeply")
    return value, end


def read_object(text: str) -> dict[str, JsonValue]:
    """Parse `text` as exactly one JSON object.

    Raises:
        BadJSONError: `text` is not exactly one JSON object.
    """
    value, end = read_json(text)
    if rest := text[end:].strip():
        raise BadJSONError(f"there is more after the JSON: {rest[:20]!r}")
    if not isinstance(value, dict):
        raise BadJSONError(f"expected a JSON object, found {json_type(value)}")
    return value


def write_json(value: Mapping[str, JsonValue]) -> str:
    """Write `value` as JSON text that is valid Unicode.

    Raises:
        BadJSONError: `value` contains a number that JSON cannot represent, or is nested too deeply.
    """
    try:
        text = _ENCODER.encode(value)
        return text if is_unicode(text) else json.dumps(value, allow_nan=False)
    except RecursionError:
        raise BadJSONError("it is nested too deeply") from None
    except ValueError:  # 1e999 is read as infinity
        raise BadJSONError("a number in it is too large") from None


def is_unicode(text: str) -> bool:
    """Whether `text` is valid Unicode. JSON may contain one half of a surrogate pair: this half is not a character."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def json_type(value: JsonValue) -> str:
    """JSON's name for the type of `value`, with its article."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
