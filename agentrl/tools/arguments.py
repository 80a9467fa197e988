"""Parsing and validation of a call's arguments; the model reads the errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from pydantic import JsonValue

from agentrl.errors import ConfigError
from agentrl.types.messages import ToolSchema

_MAX_SHOWN = 200
"""Maximum number of characters of the model's text that an error message quotes."""


_TYPES = "array, boolean, integer, null, number, object, string"


class ArgumentsError(Exception):
    """The model's arguments cannot be used. The model gets the message."""


class ArgumentsReader:
    """Parses and validates the arguments of one tool, nested schemas included.

    Raises:
        ConfigError: the schema itself is wrong.
    """

    def __init__(self, schema: ToolSchema) -> None:
        self._name = schema.name
        parameters = schema.function.parameters
        try:
            Draft202012Validator.check_schema(parameters)
        except SchemaError as error:
            place = ".".join(map(str, error.absolute_path)) or "parameters"
            is_type = error.validator == "anyOf" and place.endswith("type")
            reason = f"{error.instance!r} is not one of {_TYPES}" if is_type else error.message
            raise ConfigError.keyless(f"schema of tool '{schema.name}', at {place}: {shorten(reason)}") from error
        self._validator = Draft202012Validator(parameters)
        self._plain = _Plain.of(parameters)

    def read(self, text: str) -> dict[str, JsonValue]:
        """Return the arguments as a dictionary. It is empty for blank text.

        Raises:
            ArgumentsError: the text is not JSON, is not a JSON object, or violates the schema.
        """
        arguments = _parse(text) if text.strip() else {}
        if not isinstance(arguments, dict):
            raise ArgumentsError(f"the arguments of '{self._name}' must be a JSON object, not {_kind(arguments)}")
        if self._plain is not None and self._plain.surely(arguments):
            return arguments
        try:
            error = best_match(self._validator.iter_errors(arguments))
        except RecursionError:
            raise ArgumentsError(f"the arguments of '{self._name}' are nested too deeply") from None
        if error is not None:
            raise ArgumentsError(f"invalid arguments for '{self._name}': {_explain(error)}")
        return arguments


_PLAIN = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
_NO_CONSTRAINT = {"title", "description", "default"}


@dataclass(frozen=True, slots=True)
class _Plain:
    """Fast check of a flat schema with only types and required names; ten times as fast as the validator."""

    types: Mapping[str, tuple[type, ...]]
    required: frozenset[str]

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Self | None:  # Any: JSON
        """Return the fast check of `schema`; None if the schema is not flat or has other keywords."""
        properties, required = schema.get("properties", {}), frozenset(schema.get("required", ()))
        plain = (
            schema.keys() - _NO_CONSTRAINT <= {"type", "properties", "required", "additionalProperties"}
            and schema.get("type") == "object"
            and all(
                isinstance(property_schema, dict) and property_schema.keys() - _NO_CONSTRAINT == {"type"}
                for property_schema in properties.values()
            )
            and all(property_schema["type"] in list(_PLAIN) for property_schema in properties.values())
        )
        return (
            cls({name: _PLAIN[property_schema["type"]] for name, property_schema in properties.items()}, required)
            if plain
            else None
        )

    def surely(self, arguments: Mapping[str, JsonValue]) -> bool:
        """Whether the arguments are certainly valid; if False, they may still be valid."""
        types = self.types
        return self.required <= arguments.keys() and all(
            name in types and type(value) in types[name] for name, value in arguments.items()
        )


def _parse(text: str) -> JsonValue:
    try:
        return _DECODER.decode(text)  # type: ignore[no-any-return]  # JSON
    except RecursionError:
        raise ArgumentsError("the arguments are nested too deeply") from None
    except ValueError as error:  # also raised for numbers with thousands of digits
        raise ArgumentsError(f"the arguments are not valid JSON: {shorten(str(error))}") from None


def _refuse(constant: str) -> JsonValue:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _explain(error: ValidationError) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path).lstrip(".")
    if error.validator == "required" or not place:
        return f"{place}: {shorten(error.message)}" if place else shorten(error.message)
    if error.validator == "type":
        expected = str(error.validator_value).strip("[]").replace("'", "").replace(", ", " or ")  # a type, or a list
        return f"'{place}' must be {expected}, not {shorten(json.dumps(error.instance))}"
    return f"'{place}': {shorten(error.message)}"


def _kind(value: JsonValue) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return names.get(type(value), "null")


def shorten(text: str) -> str:
    """Shorten a long text by leaving out its middle."""
    half = _MAX_SHOWN // 2
    return text if len(text) <= _MAX_SHOWN else f"{text[:half]} ... {text[-half:]}"
