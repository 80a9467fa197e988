"""Builds schemas of typed functions, and pydantic models that convert a call's arguments to Python values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model

from agentrl.errors import ConfigError
from agentrl.types.messages import FunctionSchema, ToolSchema
from agentrl.utils.signatures import parameters_of

_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?):\s*$")
_ARGUMENT = re.compile(r"^(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return (text before the first section, description of each argument) from a docstring in Google style."""
    summary: list[str] = []
    arguments: dict[str, str] = {}
    section, name, indent = "", "", None
    for line in inspect.cleandoc(text).splitlines():
        if header := _SECTION.match(line):
            section, name, indent = header[1], "", None
        elif not section:
            summary.append(line)
        elif section in ("Args", "Arguments", "Parameters") and line.strip():
            depth = len(line) - len(line.lstrip())
            indent = depth if indent is None else indent
            entry = _ARGUMENT.match(line.strip()) if depth <= indent else None
            if entry:
                name, arguments[entry[1]] = entry[1], entry[2]
            elif name:
                arguments[name] = f"{arguments[name]} {line.strip()}".strip()
    return "\n".join(summary).strip(), arguments


def arguments_model(
    function: Callable[..., object], described: dict[str, str], untyped: bool = False
) -> type[BaseModel]:
    """Build a pydantic model with one field per parameter of `function`; `untyped` allows parameters without a type.

    Raises:
        ConfigError: a parameter has no type although `untyped` is False, has a type that a schema cannot express, or
            cannot be passed by name.
    """
    where = f"tool function '{getattr(function, '__name__', function)}'"
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # evaluating a user's annotation may raise anything
        raise ConfigError.keyless(f"{where}: cannot read its annotations: {error}") from error
    # Any: create_model's fields are (annotation, FieldInfo) pairs under names known only at run time
    fields: dict[str, Any] = {}
    for parameter in parameters_of(function, where).values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError.keyless(f"{where}: parameter '{parameter}' cannot be passed by name")
        if parameter.name not in hints and not untyped:
            raise ConfigError.keyless(f"{where}: parameter '{parameter.name}' needs a type")
        default = ... if parameter.default is parameter.empty else parameter.default
        # the name becomes an alias, because pydantic reserves some field names (`schema`, `copy`, a leading underscore)
        field = Field(default, alias=parameter.name, description=described.get(parameter.name))
        fields[f"argument_{len(fields)}"] = (hints.get(parameter.name, Any), field)
    try:
        return create_model("Arguments", __config__=ConfigDict(arbitrary_types_allowed=False, extra="forbid"), **fields)
    except Exception as error:  # pydantic raises different errors for types without a schema
        raise ConfigError.keyless(f"{where}: {str(error).splitlines()[0]}") from error


def function_schema(
    function: Callable[..., object], name: str | None = None, description: str | None = None
) -> tuple[ToolSchema, type[BaseModel]]:
    """Return the schema of a typed function, including nested types, and the pydantic model of its arguments."""
    summary, described = read_docstring(inspect.getdoc(function) or "")
    model = arguments_model(function, described)
    parameters = without_titles(model.model_json_schema())
    parameters.pop("additionalProperties", None)
    parameters.setdefault("properties", {})
    called = name or str(getattr(function, "__name__", "tool"))
    text = summary if description is None else description
    return ToolSchema(function=FunctionSchema(name=called, description=text, parameters=parameters)), model


def without_titles(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Remove the titles that pydantic generates, and put `type` and `description` first."""
    names = ("properties", "$defs")
    ordered = {name: schema[name] for name in ("type", "description") if name in schema} | dict(schema)
    return {
        key: {name: _value(inner) for name, inner in value.items()}
        if key in names and isinstance(value, dict)
        else _value(value)
        for key, value in ordered.items()
        if not (key == "title" and isinstance(value, str))
    }


def _value(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return without_titles(value)
    return [_value(inner) for inner in value] if isinstance(value, list) else value
