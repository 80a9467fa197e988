"""Tool calls written as JSON objects with a name and arguments."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from agentrl.chat.base import ParsedCall
from agentrl.chat.parsers.json_text import BadJSONError, is_unicode, json_type, read_json, read_object, write_json

ARGUMENTS = ("arguments",)


def call_name(value: JsonValue) -> str:
    """Return the name in a call; "" if the call has no name, or a name that is not text."""
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) and is_unicode(name) else ""


def call_arguments(value: JsonValue, keys: Sequence[str] = ARGUMENTS) -> str:
    """Return the arguments of a call as JSON text. In the call, they may be an object, or a string with an object.

    Args:
        keys: keys under which a call may have its arguments; error messages mention only the first.

    Raises:
        BadJSONError: the value is not a call with a name and arguments.
    """
    if not isinstance(value, dict):
        raise BadJSONError(f"The tool call is {json_type(value)}, not a JSON object.")
    if not call_name(value):
        raise BadJSONError('The tool call has no "name", or one that is not text.')
    found = next((key for key in keys if key in value), None)
    if found is None:
        raise BadJSONError(f'The tool call has no "{keys[0]}"; write {{}} for none.')
    try:
        arguments = value[found]
        if isinstance(arguments, str):
            arguments = read_object(arguments)
        if not isinstance(arguments, dict):
            raise BadJSONError(f"expected a JSON object, found {json_type(arguments)}")
        return write_json(arguments)
    except BadJSONError as error:
        raise BadJSONError(f'"{found}": {error}.') from None


def call_of(value: JsonValue, body: str, expected: str, keys: Sequence[str] = ARGUMENTS) -> ParsedCall:
    """Return the call in a JSON value. A malformed call's error ends with `expected`, which describes the right form.

    Args:
        body: the text of the value, which a malformed call keeps as its arguments.
    """
    try:
        return ParsedCall(call_name(value), call_arguments(value, keys))
    except BadJSONError as error:
        return ParsedCall(call_name(value), body, f"{error} {expected}")


def call_with_name(name: str, value: JsonValue) -> ParsedCall:
    """Return the call `name` with the arguments `value`.

    Raises:
        BadJSONError: the arguments are not a JSON object, or the name is not valid Unicode.
    """
    if not is_unicode(name):
        raise BadJSONError("The name of the tool call is not text.")
    if not isinstance(value, dict):
        raise BadJSONError(f"The arguments of the tool call are {json_type(value)}, not a JSON object.")
    try:
        return ParsedCall(name, write_json(value))
    except BadJSONError as error:
        raise BadJSONError(f"The tool call has invalid arguments: {error}.") from None


def malformed_call(name: str, body: str, error: BadJSONError, expected: str) -> ParsedCall:
    """Return a call with an error that ends with `expected`, which describes the right form."""
    return ParsedCall(name if is_unicode(name) else "", body.strip(), f"{error} {expected}")


def read_call_json(body: str, start: int = 0) -> tuple[JsonValue, int]:
    """Call `read_json`; convert its error to a sentence about the tool call."""
    try:
        return read_json(body, start)
    except BadJSONError as error:
        raise BadJSONError(f"The tool call is not valid JSON: {error}.") from None


def read_call_list(block: str, expected: str) -> tuple[list[ParsedCall], str]:
    """Return the calls of a JSON list, and the text after it; after a mistake, one malformed call and no text."""
    try:
        value, end = read_call_json(block)
        if not isinstance(value, list):
            raise BadJSONError(f"The tool calls are {json_type(value)}, not a list.")
        if not value:
            raise BadJSONError("The list of tool calls is empty.")
    except BadJSONError as error:
        return [ParsedCall("", block.strip(), f"{error} {expected}")], ""
    body = block[:end].strip()
    return [call_of(item, body, expected) for item in value], block[end:]
