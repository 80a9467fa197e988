"""Convert arguments that a model writes as plain text to the types in the tools' schemas."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from agentrl.chat.parsers.json_text import BadJSONError, json_type, read_json
from agentrl.chat.parsers.python_text import BadPythonError, read_literal
from agentrl.types.messages import ToolSchema
from agentrl.utils.json_references import find_reference

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_WORDS: Mapping[str, JsonValue] = {"true": True, "false": False, "null": None, "none": None}
"""Constants in lower case. Text is converted to lower case before it is looked up here, because templates write
constants in Python's syntax (`True`), and models write them in JSON's (`true`)."""


_CHOICES = ("anyOf", "oneOf", "allOf")
_DESCRIBES = {"properties": "object", "items": "array"}


class ParameterTypes:
    """Converts the text of an argument to the first type of its schema that fits the text.

    The text itself is returned if no type fits, if the schema names none, or if there is no schema. So a wrong value
    reaches the tool's check, which reports it to the model.
    """

    def __init__(self, schemas: Sequence[ToolSchema]) -> None:
        self._schemas = {schema.name: schema.function.parameters for schema in schemas}

    def read(self, tool: str, argument: re.Pattern[str], text: str, start: int) -> tuple[dict[str, JsonValue], int]:
        """Read the arguments that begin at `start`; return them and their end.

        Args:
            argument: matches an argument; its groups are `name`, `value`, and perhaps `string`: "true" for text,
                "false" for JSON.

        Raises:
            BadJSONError: an argument occurs twice, or an argument marked as JSON is not valid JSON.
        """
        arguments, position = dict[str, JsonValue](), start
        while found := argument.match(text, position):
            key = found["name"].strip()
            if key in arguments:
                raise BadJSONError(f"The tool call has the parameter '{key}' twice.")
            arguments[key] = self._marked_value(tool, key, found)
            position = found.end()
        return arguments, position

    def _marked_value(self, tool: str, key: str, found: re.Match[str]) -> JsonValue:
        text, string = found["value"], found.groupdict().get("string")
        if string == "true":
            return text
        if string is None:
            return self.value(tool, key, text)
        try:
            return _read_whole(text)
        except BadJSONError as error:
            raise BadJSONError(f"The parameter '{key}' is not valid JSON: {error}.") from None

    def value(self, tool: str, parameter: str, text: str) -> JsonValue:
        """Return the value of an argument that the model wrote as `text`."""
        schema = self._schemas.get(tool, {})
        for name in _types_of(_properties(schema).get(parameter), schema):
            if name == "string":
                return text
            try:
                value = _readers[name](text) if name in _readers else _read_any(text)
            except (BadJSONError, BadPythonError):
                continue
            if isinstance(value, _TYPES.get(name, ())) and (name == "boolean" or not isinstance(value, bool)):
                return value
        return text


def near(text: str, position: int) -> str:
    """Describe the text at a position, for errors."""
    found = text[position : position + 200].strip()[:20]
    return repr(found) if found else "nothing"


def _properties(parameters: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    properties = parameters.get("properties")
    return properties if isinstance(properties, dict) else {}


def _types_of(schema: JsonValue, whole: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield the types that a schema allows, in order. References are looked up in the schema `whole`."""
    left, followed = [schema], set[str]()
    while left:
        part = left.pop()
        if not isinstance(part, dict):
            continue
        yield from _named_types(part)
        following = [choice for key in _CHOICES for choice in _list_of(part.get(key))]
        reference = part.get("$ref")
        if isinstance(reference, str) and reference not in followed:  # a schema may refer to itself
            followed.add(reference)
            following.append(find_reference(whole, reference))
        left += reversed(following)


def _named_types(schema: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield the types in `type`; without `type`, the types of the values that the schema lists or describes."""
    given = schema.get("type")
    if given is not None:
        yield from (name for name in [given, *_list_of(given)] if isinstance(name, str))
        return
    values = _list_of(schema.get("enum")) or ([schema["const"]] if "const" in schema else [])
    yield from (json_type(value).split()[-1] for value in values)
    yield from (name for key, name in _DESCRIBES.items() if key in schema)


def _list_of(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _read_word(text: str) -> JsonValue:
    word = text.strip().lower()
    if word not in _WORDS:
        raise BadJSONError("no such word")
    return _WORDS[word]


def _read_whole(text: str) -> JsonValue:
    value, end = read_json(text)
    if text[end:].strip():
        raise BadJSONError("there is more after the value")
    return value


def _read_any(text: str) -> JsonValue:
    """Read JSON, or a Python literal: some models write `{'a': True}`."""
    try:
        return _read_whole(text)
    except BadJSONError:
        value, end = read_literal(text, 0)
        if text[end:].strip():
            raise BadJSONError("there is more after the value") from None
        return value


_readers: Mapping[str, Callable[[str], JsonValue]] = {
    "boolean": _read_word,
    "null": _read_word,
    "integer": _read_whole,
    "number": _read_whole,
}
