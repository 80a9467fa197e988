from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from agentrl.errors import ConfigError
from agentrl.tools.function import TOOLS, as_tool, function_tool, tool
from agentrl.tools.schema import read_docstring


class Point(BaseModel):
    x: int
    y: int = 0


def search(query: str, limit: int = 5, kind: Literal["web", "news"] = "web", near: Point | None = None) -> str:
    """Search for something.

    Over two lines.

    Args:
        query (str): What to look for,
            in words.
        limit: How many results.

    Returns:
        The results.
    """
    return f"{query} {limit} {kind} {near!r}"


def test_schema_of_a_function_holds_nested_types_and_descriptions():
    schema = as_tool(search).schema.for_template()["function"]
    assert schema["name"] == "search"
    assert schema["description"] == "Search for something.\n\nOver two lines."
    parameters = schema["parameters"]
    assert parameters["required"] == ["query"]
    assert parameters["properties"]["query"] == {"type": "string", "description": "What to look for, in words."}
    assert parameters["properties"]["limit"] == {"type": "integer", "default": 5, "description": "How many results."}
    assert parameters["properties"]["kind"] == {"type": "string", "enum": ["web", "news"], "default": "web"}
    assert parameters["properties"]["near"]["anyOf"] == [{"$ref": "#/$defs/Point"}, {"type": "null"}]
    assert parameters["$defs"]["Point"] == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
    }


def test_flat_schema_equals_that_of_transformers():
    from transformers.utils import get_json_schema

    def weather(city: str, days: int, units: list[str]) -> str:
        """The weather.

        Args:
            city: Where.
            days: How long.
            units: Which.
        """
        return city

    theirs = get_json_schema(weather)
    del theirs["function"]["return"]  # templates never render it
    assert as_tool(weather).schema.for_template() == theirs


def test_arguments_arrive_as_the_declared_types():
    assert as_tool(search).bind({"query": "a", "near": {"x": 3}}) == {"query": "a", "near": Point(x=3)}


def test_a_property_called_title_is_kept():
    def book(title: str) -> str:
        """Find a book."""
        return title

    assert as_tool(book).schema.function.parameters["properties"] == {"title": {"type": "string"}}


def test_parameter_names_that_pydantic_reserves_are_fine():
    def odd(schema: int, copy: int, _hidden: int, model_config: int) -> int:
        """Odd names."""
        return schema + copy + _hidden + model_config

    given = {"schema": 1, "copy": 2, "_hidden": 3, "model_config": 4}
    assert as_tool(odd).bind(given) == given


def test_annotated_fields_add_constraints():
    def pick(count: Annotated[int, Field(ge=1, le=3)]) -> int:
        """Pick."""
        return count

    assert as_tool(pick).schema.function.parameters["properties"]["count"] == {
        "type": "integer",
        "maximum": 3,
        "minimum": 1,
    }


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x, "parameter 'x' needs a type"),
        (lambda *rest: rest, "'\\*rest' cannot be passed by name"),
    ],
)
def test_functions_without_a_schema_are_refused(function, text):
    with pytest.raises(ConfigError, match=text):
        tool(function)


def test_unknown_annotation_is_refused():
    def broken(x: NoSuchType) -> str:  # noqa: F821
        return ""

    with pytest.raises(ConfigError, match="NoSuchType"):
        tool(broken)


def test_decorator_keeps_the_function_and_registers_it():
    @tool("renamed_tool", description="Told.", timeout_s=2.0)
    def original(x: int) -> int:
        """Not told."""
        return x + 1

    assert original(1) == 2
    assert TOOLS.get("renamed_tool") is original
    marked = as_tool(original)
    assert (marked.name, marked.schema.function.description, marked.timeout_s) == ("renamed_tool", "Told.", 2.0)


def test_function_tool_accepts_a_schema_as_in_verl():
    schema = {"type": "function", "function": {"name": "given", "description": "d", "parameters": {"type": "object"}}}

    @function_tool("given", schema=schema)
    def untyped(anything=3):
        return anything

    assert as_tool(untyped).schema.function.parameters == {"type": "object"}
    assert as_tool(untyped).bind({"anything": [1]}) == {"anything": [1]}


def test_options_that_cannot_be_honoured_are_refused():
    async def waits(x: int) -> int:
        return x

    with pytest.raises(ConfigError, match="isolation: process"):
        tool(isolation="process")(waits)
    with pytest.raises(ConfigError, match="above 0"):
        tool(timeout_s=0)(search)
    with pytest.raises(ConfigError, match="thread or process"):
        tool(isolation="container")(search)


def test_docstring_without_sections():
    assert read_docstring("Only this.") == ("Only this.", {})
    assert read_docstring("") == ("", {})
