"""Readers of single fields of a row, with one-sentence error messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

from pydantic import JsonValue

from agentrl.data.rows.base import Row
from agentrl.errors import suggestion
from agentrl.security.json_depth import parse
from agentrl.types.messages import FunctionCall, Message, MessageToolCall

SYSTEM_ROLES = frozenset({"system", "developer"})
ROLES = SYSTEM_ROLES | {"user", "assistant", "tool"}


class FieldError(Exception):
    """An invalid field. The caller adds file and row and raises a DataError."""


def wrong(field: str, expected: str, value: object) -> FieldError:
    """Return the error for a field with an unexpected value."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return FieldError(f"field '{field}': expected {expected}, got {names.get(type(value), 'nothing')}")


def required(row: Row, key: str, expected: str) -> JsonValue:
    """Return the value of `key`.

    Raises:
        FieldError: the value is missing or null. For a missing key, the message suggests the nearest column.
    """
    if key not in row:
        raise FieldError(f"no field '{key}', expected {expected}; {suggestion(key, row)}")
    if row[key] is None:
        raise FieldError(f"field '{key}': expected {expected}, got null")
    return row[key]


def optional_text(row: Row, key: str) -> str | None:
    """Return the text at `key`, or None."""
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise wrong(key, "text", value)
    return value


def optional_object(row: Row, key: str, within: str = "") -> Mapping[str, JsonValue]:
    """Return the object at `key`, which may be JSON text; return an empty object if the value is missing."""
    value = row.get(key)
    if value is None or value == "":
        return {}
    value = parse_json(value, within + key)
    if not isinstance(value, dict):
        raise wrong(within + key, "an object", value)
    return value


def read_messages(value: JsonValue, field: str, parts: Collection[str] = ("text",)) -> list[Message]:
    """Read chat messages. Each needs a known role, and content or tool calls. Arguments of calls are parsed to objects.

    Args:
        parts: allowed types of content parts.
    """
    if not isinstance(value, list):
        raise wrong(field, "a list of messages", value)
    if not value:
        raise FieldError(f"field '{field}': expected a list of messages, got an empty one")
    return [_message(item, f"{field}[{i}]", parts) for i, item in enumerate(value)]


def with_system(messages: list[Message], system_prompt: str | None) -> list[Message]:
    """Prepend `system_prompt`, if not None, to `messages`, unless the first message already is a system message."""
    if system_prompt is None or messages[0]["role"] in SYSTEM_ROLES:
        return messages
    return [Message(role="system", content=system_prompt), *messages]


def _message(value: JsonValue, field: str, parts: Collection[str]) -> Message:
    if not isinstance(value, dict):
        raise wrong(field, "an object with role and content", value)
    if not isinstance(role := value.get("role"), str):
        raise wrong(f"{field}.role", "text", role)
    if role not in ROLES:
        raise FieldError(f"field '{field}.role': unknown role '{role}': {suggestion(role, ROLES)}")
    message: dict[str, JsonValue] = {key: item for key, item in value.items() if item is not None}
    if calls := message.pop("tool_calls", None):
        message["tool_calls"] = cast(JsonValue, _tool_calls(calls, f"{field}.tool_calls"))
    elif not isinstance(message.get("content"), str | list):
        raise wrong(f"{field}.content", "text, or a list of parts", message.get("content"))
    _check_parts(message.get("content"), f"{field}.content", parts)
    return cast(Message, message)


def _check_parts(content: JsonValue, field: str, parts: Collection[str]) -> None:
    for part in content if isinstance(content, list) else ():
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        if kind not in parts:
            raise FieldError(f"field '{field}': a part of type '{kind}', only {' and '.join(parts)} can be used here")


def _tool_calls(value: JsonValue, field: str) -> list[MessageToolCall]:
    if not isinstance(value, list):
        raise wrong(field, "a list of calls", value)
    return [_tool_call(item, f"{field}[{i}]") for i, item in enumerate(value)]


def _tool_call(value: JsonValue, field: str) -> MessageToolCall:
    function = value.get("function", value) if isinstance(value, dict) else value  # the level `function` may be missing
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise wrong(field, "an object {function: {name, arguments}}", value)
    call = MessageToolCall(
        type="function",
        function=FunctionCall(name=str(function["name"]), arguments=_arguments(function, f"{field}.arguments")),
    )
    if isinstance(value, dict) and isinstance(value.get("id"), str):
        call["id"] = str(value["id"])
    return call


def _arguments(function: Mapping[str, JsonValue], field: str) -> JsonValue:
    arguments = parse_json(function.get("arguments") or {}, field)
    if not isinstance(arguments, dict):
        raise wrong(field, "an object", arguments)
    return arguments


def parse_json(value: JsonValue, field: str) -> JsonValue:
    """Return `value`, parsed as JSON if it is text."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except ValueError as error:
        raise FieldError(f"field '{field}': not JSON: {error}") from error
