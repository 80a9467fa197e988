"""Types of arguments from schemas that name no `type` of their own."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel, JsonValue

from agentrl.chat.base import parser_for
from agentrl.chat.parsers import tool_parsers
from agentrl.chat.parsers.parameter_types import ParameterTypes
from agentrl.tools.schema import function_schema
from agentrl.types.messages import FunctionSchema, ToolSchema

POINT: JsonValue = {"type": "object", "properties": {"x": {"type": "integer"}}}
DEFINITIONS: JsonValue = {
    "Point": POINT,
    "Mode": {"type": "integer", "enum": [1, 2]},
    "Loop": {"$ref": "#/$defs/Loop"},
    "Tree": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"$ref": "#/$defs/Tree"}, {"type": "array"}]},
}


def value(schema: JsonValue, text: str) -> JsonValue:
    parameters: dict[str, JsonValue] = {"type": "object", "properties": {"a": schema}, "$defs": DEFINITIONS}
    return ParameterTypes([ToolSchema(function=FunctionSchema(name="f", parameters=parameters))]).value("f", "a", text)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"$ref": "#/$defs/Point"}, '{"x": 1}', {"x": 1}),
        ({"$ref": "#/$defs/Mode"}, "2", 2),
        ({"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, '{"x": 1}', {"x": 1}),
        ({"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, "null", None),
        ({"allOf": [{"$ref": "#/$defs/Point"}]}, '{"x": 1}', {"x": 1}),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"const": 5}, "5", 5),
        ({"properties": {"x": {}}}, '{"x": 1}', {"x": 1}),
        ({"items": {"type": "integer"}}, "[1]", [1]),
        ({"$ref": "#/$defs/Tree"}, "[1]", [1]),
        ({"$ref": "#/$defs/Loop"}, "[1]", "[1]"),
        ({"$ref": "#/$defs/Missing"}, "[1]", "[1]"),
        ({"$ref": "https://example.com/point.json"}, "[1]", "[1]"),
        ({}, "[1]", "[1]"),
    ],
)
def test_types_of_schemas_without_a_type(schema: JsonValue, text: str, expected: JsonValue) -> None:
    assert value(schema, text) == expected


def test_a_schema_may_refer_through_many_others() -> None:
    definitions: dict[str, JsonValue] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(5000)}
    parameters: dict[str, JsonValue] = {
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": definitions | {"d5000": POINT},
    }
    types = ParameterTypes([ToolSchema(function=FunctionSchema(name="f", parameters=parameters))])
    assert types.value("f", "a", '{"x": 1}') == {"x": 1}


class Point(BaseModel):
    x: int


def move(target: Point, via: Point | None = None) -> str:
    """Move.

    Args:
        target: where to
        via: a stop
    """
    return f"{target} {via}"


TAGS = {
    "glm": ("<tool_call>move\n", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", "</tool_call>"),
    "qwen3_coder": (
        "<tool_call>\n<function=move>\n",
        "<parameter={}>\n{}\n</parameter>\n",
        "</function>\n</tool_call>",
    ),
    "muse_glimmer": (
        ' to=move<|message|><atem:function_calls>\n<atem:invoke name="move">\n',
        '<atem:parameter name="{}">{}</atem:parameter>\n',
        "</atem:invoke>\n</atem:function_calls>",
    ),
}


@pytest.mark.parametrize("name", TAGS)
def test_a_function_with_arguments_of_a_model_class_can_be_called(name: str) -> None:
    schema, arguments = function_schema(move)
    before, argument, after = TAGS[name]
    given = {"target": {"x": 1}, "via": {"x": 2}}
    written = before + "".join(argument.format(key, json.dumps(value)) for key, value in given.items()) + after
    (call,) = parser_for(tool_parsers.get(name)(), [schema]).parse(written).calls
    assert json.loads(call.arguments) == given
    arguments.model_validate(json.loads(call.arguments))
