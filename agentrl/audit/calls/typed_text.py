"""Arguments written as plain text, whose types come from the tools' schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from urllib.parse import unquote

from agentrl.audit.calls.json_values import only_json
from agentrl.audit.calls.literals import NotLiteralError, literal_at
from agentrl.audit.reading.run_info import Json, tool_name

_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}


class Types:
    """The types of arguments, from saved tool schemas.

    A value has the first type of its schema that fits the text. If no type fits or is given, the value stays text.
    """

    def __init__(self, tools: Sequence[Json]) -> None:
        self._schemas = {tool_name(tool): _dictionary(tool["function"].get("parameters")) for tool in tools}

    def value(self, tool: str, argument: str, text: str) -> Json:
        """The value of an argument that is written as `text`."""
        schema = self._schemas.get(tool, {})
        for kind in _kinds(_dictionary(schema.get("properties")).get(argument), schema, set()):
            if kind == "string":
                break
            read = _READ.get(kind)
            for value in read(text) if read else ():
                return value
        return text


def _dictionary(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _kinds(schema: Json, whole: Json, followed: set[str]) -> Iterator[str]:
    """The types that `schema` names or implies, then the types of its alternatives and of the schema in its `$ref`."""
    schema = _dictionary(schema)
    yield from _own_kinds(schema)
    for key in ("anyOf", "oneOf", "allOf"):
        for alternative in _list(schema.get(key)):
            yield from _kinds(alternative, whole, followed)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        followed.add(reference)
        yield from _kinds(_referred(whole, reference), whole, followed)


def _own_kinds(schema: Mapping[str, Json]) -> list[str]:
    named = schema.get("type")
    if named is not None:
        return [kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)]
    values = _list(schema.get("enum")) or [schema[key] for key in ("const",) if key in schema]
    described = [kind for key, kind in (("properties", "object"), ("items", "array")) if key in schema]
    return [*map(_kind_of, values), *described]


def _kind_of(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds: Mapping[type, str] = {dict: "object", list: "array", str: "string", type(None): "null"}
    return kinds.get(type(value), "number")


def _referred(whole: Json, reference: str) -> Json:
    """The part of a schema to which a JSON pointer such as `#/$defs/Point` refers; None if there is none."""
    if not reference.startswith("#"):
        return None
    for step in unquote(reference[1:]).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(whole, list):
            whole = dict(zip(map(str, range(len(whole))), whole, strict=True))
        whole = _dictionary(whole).get(key)
    return whole


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
"""Type -> reader. A reader returns a list with the value, or an empty list if the text has another type."""
