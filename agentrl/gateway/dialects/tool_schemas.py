"""Schemas of a client's tools."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache

from pydantic import JsonValue

from agentrl.gateway.dialects.fields import Fields
from agentrl.gateway.dialects.json_text import dumped
from agentrl.types.messages import FunctionSchema, ToolSchema

TEXT_INPUT: JsonValue = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""Parameters of a tool whose input is a text and not an object."""
_MOST_CACHED_BYTES = 2**16


@dataclass(slots=True)
class Tools:
    """Tools of a request.

    Attributes:
        text_inputs: names of tools whose input is a text; the model calls them with one argument `input`.
        left_out: the tools that the gateway cannot offer, each as its key in the request and its type.
        namespaces: tool name that the model sees -> (namespace of the tool, name in the namespace); see `name_in`.
    """

    schemas: list[ToolSchema] = field(default_factory=list)
    text_inputs: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add_function(self, fields: Fields, parameters_key: str = "parameters", namespace: str = "") -> None:
        """Add a tool from its name, description and parameters."""
        parameters = fields.fields(parameters_key).values if fields.get(parameters_key) is not None else None
        name = name_in(namespace, fields.name("name"))
        if namespace:
            self.namespaces[name] = namespace, fields.name("name")
        self._add(name, fields, None if parameters is None else dict(parameters))

    def add_text_input(self, fields: Fields) -> None:
        """Add a tool whose input is a text."""
        self._add(fields.name("name"), fields, TEXT_INPUT)
        self.text_inputs.add(fields.name("name"))

    def leave_out(self, fields: Fields) -> None:
        """Record a tool that the gateway cannot offer: OpenAI or Anthropic runs the tool or defines its schema."""
        self.left_out.append(f"{fields.path} ({fields.name('type')[:40]})")

    def _add(self, name: str, fields: Fields, parameters: JsonValue) -> None:
        text = dumped([name, fields.optional_text("description"), parameters])
        self.schemas.append(_cached(text) if len(text) <= _MOST_CACHED_BYTES else _schema(text))


def name_in(namespace: str, name: str) -> str:
    """Return the tool name that the model sees; it begins with the tool's namespace if there is one."""
    return f"{namespace}__{name}" if namespace else name


def _schema(text: bytes) -> ToolSchema:
    name, description, parameters = json.loads(text)
    given = {} if parameters is None else {"parameters": parameters}
    return ToolSchema(function=FunctionSchema(name=name, description=description, **given))


_cached = lru_cache(maxsize=1024)(_schema)  # a client sends its tools again with every turn
