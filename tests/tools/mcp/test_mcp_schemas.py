"""Schemas of servers: what the model sees, and what calls are checked against."""

from __future__ import annotations

import pytest

from agentrl.tools.mcp.schemas import SchemaRefusedError, checked_schema, tool_schema


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"type": "array"}, "must have the type 'object', not 'array'"),
        ({}, "must have the type 'object', not None"),
        ({"type": "object", "properties": {"a": {"description": "\ud800"}}}, "is not valid JSON in Unicode"),
        ({"type": "object", "properties": {"a": {"$ref": "#/properties/b/0"}, "b": [1]}}, "invalid at properties.b"),
        ({"type": "object", "properties": {"a": {"$ref": "#/properties/b/1"}, "b": [1]}}, "is not inside the schema"),
    ],
)
def test_schemas_that_the_sdk_may_let_through_are_refused(parameters, message):
    with pytest.raises(SchemaRefusedError, match=message):
        tool_schema("a", "", parameters)


def test_a_description_that_is_not_unicode_is_refused():
    with pytest.raises(SchemaRefusedError, match="not valid Unicode"):
        tool_schema("a", "\ud800", {"type": "object"})


def test_only_quick_keywords_are_checked():
    parameters = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "x", "format": "date", "maxLength": 3},
            "b": {"oneOf": [{"const": 1}, {"$ref": "#/$defs/c"}], "not": {"const": 2}},
            "d": {"type": "array", "items": {"enum": [1, 2], "if": {}}, "uniqueItems": True, "maxItems": 2},
        },
        "required": ["a"],
        "additionalProperties": False,
        "dependentRequired": {"a": ["b"]},
        "$defs": {"c": {"type": "string"}},
    }
    assert checked_schema(tool_schema("a", "", parameters)).function.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 3},
            "b": {"anyOf": [{"const": 1}, {}]},
            "d": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2},
        },
        "required": ["a"],
        "additionalProperties": False,
    }


def test_other_properties_are_allowed_if_a_pattern_may_allow_them():
    parameters = {"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": False}
    checked = checked_schema(tool_schema("a", "", parameters)).function.parameters
    assert "additionalProperties" not in checked
