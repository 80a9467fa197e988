"""Reading JSON that a model wrote: whatever is wrong with it becomes one sentence for the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NoReturn

from pydantic import JsonValue


class BadJSONError(Exception):
    """What is wrong, and where."""


def _refuse_constant(name: str) -> NoReturn:
    raise BadJSONError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def read_json(text: str) -> tuple[JsonValue, int]:
    """The JSON value that `text` begins with, after blanks, and the position where it ends.

    Raises:
        BadJSONError: with line and column, counted from 1 in `text`.
    """
    start = len(text) - len(text.lstrip())
    try:
        value: JsonValue
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        near = text[error.pos : error.pos + 20]
        where = f"line {error.lineno} column {error.colno}"
        raise BadJSONError(f"{error.msg} at {where}{f', near {near!r}' if near else ', where it ends'}") from None
    except RecursionError:
        raise BadJSONError("it is nested too deeply") from None
    except ValueError:  # Python's bound on digits: a longer integer takes quadratic time
        raise BadJSONError("a number in it is too long") from None
    return value, end


def read_object(text: str) -> dict[str, JsonValue]:
    """`text` as one JSON object and nothing else.

    Raises:
        BadJSONError: it is not.
    """
    value, end = read_json(text)
    if rest := text[end:].strip():
        raise BadJSONError(f"there is more after the JSON: {rest[:20]!r}")
    if not isinstance(value, dict):
        raise BadJSONError(f"expected a JSON object, found {json_type(value)}")
    return value


def write_json(value: Mapping[str, JsonValue]) -> str:
    """`value` as JSON text that is valid Unicode.

    Raises:
        BadJSONError: it holds a number that JSON has no text for.
    """
    try:
        text = _ENCODER.encode(value)
        return text if is_unicode(text) else json.dumps(value, allow_nan=False)
    except RecursionError:
        raise BadJSONError("it is nested too deeply") from None
    except ValueError:  # 1e999 is read as infinity
        raise BadJSONError("a number in it is too large") from None


def is_unicode(text: str) -> bool:
    """Whether `text` can be stored: JSON may escape half of a surrogate pair, which is no character."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def json_type(value: JsonValue) -> str:
    """What JSON calls the type of `value`, with its article."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
