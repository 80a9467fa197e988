"""Arguments written as plain text, whose types come from the tools' schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from agentrl.audit.calls.json_values import only_json
from agentrl.audit.calls.literals import NotLiteralError, literal_at
from agentrl.audit.reading.run_info import Json, tool_name

_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}


class Types:
    """The types of arguments, from saved tool schemas.

    A value has the first type of its schema that fits the text. It is text if none fits, or if no type is given.
    """

    def __init__(self, tools: Sequence[Json]) -> None:
        self._properties = {tool_name(tool): _properties(tool) for tool in tools}

    def value(self, tool: str, argument: str, text: str) -> Json:
        """The value of an argument that is written as `text`."""
        for kind in _kinds(self._properties.get(tool, {}).get(argument)):
            if kind == "string":
                break
            read = _READ.get(kind)
            for value in read(text) if read else ():
                return value
        return text


def _properties(tool: Json) -> Mapping[str, Json]:
    parameters = tool["function"].get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return properties if isinstance(properties, dict) else {}


def _kinds(schema: Json) -> Iterator[str]:
    """The types that a schema names, then those of its alternatives."""
    if isinstance(schema, dict):
        kinds = schema.get("type")
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if isinstance(kind, str):
                yield kind
        for alternatives in (schema.get("anyOf"), schema.get("oneOf")):
            for alternative in alternatives if isinstance(alternatives, list) else []:
                yield from _kinds(alternative)


def _constant(text: str) -> list[Json]:
    word = text.strip().lower()
    return [_CONSTANTS[word]] if word in _CONSTANTS else []


def _json_or_literal(text: str) -> list[Json]:
    value, found = only_json(text)
    if found:
        return [value]
    try:
        value, end = literal_at(text, 0)
    except NotLiteralError:
        return []
    return [] if text[end:].strip() else [value]


def _number(text: str) -> list[Json]:
    value, found = only_json(text)
    return [value] if found and isinstance(value, int | float) and not isinstance(value, bool) else []


_READ: Mapping[str, Callable[[str], list[Json]]] = {
    "boolean": lambda text: [value for value in _constant(text) if value is not None],
    "null": lambda text: [value for value in _constant(text) if value is None],
    "integer": lambda text: [value for value in _number(text) if isinstance(value, int)],
    "number": _number,
    "array": lambda text: [value for value in _json_or_literal(text) if isinstance(value, list)],
    "object": lambda text: [value for value in _json_or_literal(text) if isinstance(value, dict)],
}
"""Type -> reader, which returns a list of the value; an empty list if the text has another type."""
