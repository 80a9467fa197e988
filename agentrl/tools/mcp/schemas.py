"""Limits on the schemas that MCP servers send: a schema becomes part of the prompt, and calls are checked with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from pydantic import JsonValue

from agentrl.tools.arguments import shorten
from agentrl.tools.schema import without_titles
from agentrl.types.messages import FunctionSchema, ToolSchema
from agentrl.utils.json_references import find_reference

MAX_DESCRIPTION_CHARS = 8192
MAX_SCHEMA_BYTES = 64 * 2**10
MAX_DEPTH = 32
MAX_NODES = 10_000
"""Maximum number of nodes of a schema after its references are replaced."""
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,64}")
_CHECKED = frozenset(
    {
        *("type", "required", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    }
)
"""Keywords that `checked_schema` keeps unchanged. The time to check them is linear in the sizes of schema and call."""


class SchemaRefusedError(Exception):
    """A tool cannot be offered to the model. The message is one line with the reason."""


def tool_schema(name: str, description: str, parameters: Mapping[str, JsonValue]) -> ToolSchema:
    """Return the schema that the model sees.

    Raises:
        SchemaRefusedError: the name is not allowed, or the description or the schema is too large or malformed.
    """
    if not _NAME.fullmatch(name):
        raise SchemaRefusedError(f"the name {name[:100]!r} must have 1 to 64 letters, digits, '_', '-', '.' or '/'")
    if len(description) > MAX_DESCRIPTION_CHARS:
        raise SchemaRefusedError(f"its description has {len(description)} characters, at most {MAX_DESCRIPTION_CHARS}")
    _check_size(parameters)
    if parameters.get("type") != "object":
        raise SchemaRefusedError(f"its schema must have the type 'object', not {parameters.get('type')!r:.100}")
    _check_references(parameters)
    _check_valid(parameters)
    plain = without_titles({key: value for key, value in parameters.items() if key != "$schema"})
    plain.setdefault("properties", {})
    return ToolSchema(function=FunctionSchema(name=name, description=_text(description), parameters=plain))


def _text(text: str) -> str:
    try:
        return text.encode().decode()
    except UnicodeEncodeError:
        raise SchemaRefusedError("its texts are not valid Unicode") from None


def _check_size(schema: Mapping[str, JsonValue]) -> None:
    level: list[JsonValue] = [dict(schema)]
    for _ in range(MAX_DEPTH):
        level = [*chain.from_iterable(map(_inside, level))]
    if level:
        raise SchemaRefusedError(f"its schema is nested more than {MAX_DEPTH} levels deep")
    try:
        size = len(json.dumps(schema, ensure_ascii=False).encode())
    except (UnicodeEncodeError, ValueError):
        raise SchemaRefusedError("its schema is not valid JSON in Unicode") from None
    if size > MAX_SCHEMA_BYTES:
        raise SchemaRefusedError(f"its schema has {size} bytes, at most {MAX_SCHEMA_BYTES}")


def _inside(value: JsonValue) -> Iterator[JsonValue]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _check_valid(schema: Mapping[str, JsonValue]) -> None:
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(dict(schema))
    except SchemaError as error:
        place = ".".join(map(str, error.absolute_path)) or "the top"
        raise SchemaRefusedError(f"its schema is invalid at {place}: {shorten(error.message)}") from None


def _check_references(schema: Mapping[str, JsonValue]) -> None:
    """Refuse references to outside the schema, and a schema with too many nodes after its references are replaced.

    A recursive reference is replaced once.
    """
    _References(dict(schema)).num_nodes(dict(schema), ())


class _References:
    def __init__(self, schema: dict[str, JsonValue]) -> None:
        self._schema = schema
        self._num_nodes: dict[str, int] = {}

    def num_nodes(self, value: JsonValue, inside: tuple[str, ...]) -> int:
        """Count the nodes of `value` with references replaced; `inside`: the references that led to `value`."""
        total = 1
        reference = value.get("$ref") if isinstance(value, dict) else None
        if isinstance(reference, str) and reference not in inside:
            total += self._of_reference(reference, (*inside, reference))
        total += sum(self.num_nodes(inner, inside) for inner in _inside(value))
        if total > MAX_NODES:
            raise SchemaRefusedError(f"its schema has more than {MAX_NODES} nodes after its references are replaced")
        return total

    def _of_reference(self, reference: str, inside: tuple[str, ...]) -> int:
        if len(inside) > MAX_DEPTH:
            raise SchemaRefusedError(f"its schema has more than {MAX_DEPTH} levels of references")
        if reference not in self._num_nodes:
            self._num_nodes[reference] = self.num_nodes(self._target(reference), inside)
        return self._num_nodes[reference]

    def _target(self, reference: str) -> JsonValue:
        target = find_reference(self._schema, reference)
        if target is None:
            raise SchemaRefusedError(f"its schema refers to {reference[:100]!r}, which is not inside the schema")
        return target


def checked_schema(schema: ToolSchema) -> ToolSchema:
    """Return the schema for checking calls: the parts of `schema` that are quick to check.

    The server checks all other parts. For example, patterns and references are omitted here, because a hostile
    schema could use them to make one check take forever.
    """
    parameters = _checkable(schema.function.parameters)
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError:  # keywords of an older draft
        parameters = {"type": "object"}
    return ToolSchema(function=FunctionSchema(name=schema.name, parameters=parameters))


def _checkable(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    kept: dict[str, JsonValue] = {}
    for key, value in schema.items():
        match key, value:
            case "properties", dict():
                kept[key] = {name: _inner(inner) for name, inner in value.items()}
            # oneOf is checked as anyOf: without the omitted keywords, several of its alternatives may match
            case (("anyOf" | "oneOf"), list()):
                kept.setdefault("anyOf", [_inner(inner) for inner in value])
            case (("allOf" | "prefixItems"), list()):
                kept[key] = [_inner(inner) for inner in value]
            case "items", dict():
                kept[key] = _inner(value)
            case _ if key in _CHECKED:
                kept[key] = value
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        kept["additionalProperties"] = False
    return kept


def _inner(value: JsonValue) -> JsonValue:
    return _checkable(value) if isinstance(value, dict) else value
