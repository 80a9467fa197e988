from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentrl.errors import ConfigError
from agentrl.tools.arguments import ArgumentsError, ArgumentsReader
from agentrl.types.messages import FunctionSchema, ToolSchema

NESTED = {
    "type": "object",
    "properties": {
        "points": {
            "type": "array",
            "items": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
        },
        "mode": {"enum": ["a", "b"]},
        "label": {"type": ["string", "null"]},
    },
    "required": ["points"],
}


def reader(parameters):
    return ArgumentsReader(ToolSchema(function=FunctionSchema(name="draw", parameters=parameters)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ('{"points": NaN}', "NaN is not JSON"),
        ("[1]", "must be a JSON object, not array"),
        ("null", "must be a JSON object, not null"),
        ("", "'points' is a required property"),
        ('{"points": 3}', "'points' must be array, not 3"),
        ('{"points": [{"x": 1}, {"x": "1"}]}', "'points[1].x' must be integer, not \"1\""),
        ('{"points": [{}]}', "points[0]: 'x' is a required property"),
        ('{"points": [], "mode": "c"}', "'mode': 'c' is not one of ['a', 'b']"),
        ('{"points": [], "label": 1}', "'label' must be string or null, not 1"),
        ('{"points": ' + "9" * 5000 + "}", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_invalid_arguments_are_named(text, message):
    with pytest.raises(ArgumentsError) as caught:
        reader(NESTED).read(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


def test_valid_arguments_pass_unchanged():
    value = {"points": [{"x": 1}, {"x": 2, "y": "kept"}], "mode": "a", "label": None}
    assert reader(NESTED).read(json.dumps(value)) == value


def test_no_arguments_for_a_tool_without_parameters():
    assert reader({"type": "object", "properties": {}}).read(" ") == {}


def test_invalid_schema_is_refused_at_start():
    with pytest.raises(ConfigError, match=r"tool 'draw', at properties\.x\.type.*'float'"):
        reader({"type": "object", "properties": {"x": {"type": "float"}}})


def test_item_instead_of_items_as_in_verls_example_is_kept():
    parameters = {"type": "object", "properties": {"q": {"type": "array", "item": {"type": "string"}}}}
    assert reader(parameters).read('{"q": ["a"]}') == {"q": ["a"]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


READER = reader(NESTED)


def fits(value):
    """Checks the schema NESTED by hand."""
    if not isinstance(value, dict) or "points" not in value or not isinstance(value["points"], list):
        return False
    for point in value["points"]:
        x = point.get("x") if isinstance(point, dict) else None
        whole = isinstance(x, int) or (isinstance(x, float) and x.is_integer())
        if isinstance(x, bool) or not whole:
            return False
    return value.get("mode", "a") in ("a", "b") and (value.get("label") is None or isinstance(value["label"], str))


NEARLY = st.fixed_dictionaries(
    {"points": st.lists(st.fixed_dictionaries({"x": JSON}) | JSON, max_size=3) | JSON},
    optional={"mode": st.sampled_from(["a", "b", "c", 1]), "label": JSON},
)


@settings(max_examples=3 * settings.default.max_examples)
@given(NEARLY | JSON)
def test_accepts_exactly_what_fits(value):
    try:
        accepted = READER.read(json.dumps(value)) == value
    except ArgumentsError:
        accepted = False
    assert accepted == fits(value)


@settings(max_examples=3 * settings.default.max_examples)
@given(st.text() | JSON.map(json.dumps))
def test_model_arguments_raise_only_argument_errors(text):
    try:
        READER.read(text)
    except ArgumentsError:
        return
    assert isinstance(json.loads(text), dict)


PLAIN = {"type": "object", "properties": {name: {"type": name} for name in ("string", "integer", "number", "boolean")}}
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3))


@pytest.mark.slow
@settings(max_examples=2 * settings.default.max_examples)
@given(
    arguments=st.dictionaries(st.sampled_from([*PLAIN["properties"], "other"]), VALUES),
    required=st.sets(st.sampled_from([*PLAIN["properties"], "other"]), max_size=2),
    closed=st.booleans(),
)
def test_fast_check_never_accepts_invalid_arguments(arguments, required, closed):
    parameters = {**PLAIN, "required": sorted(required), "additionalProperties": not closed}
    plain = reader(parameters)._plain
    valid = Draft202012Validator(parameters).is_valid(arguments)
    assert valid or not plain.surely(arguments)


def test_fast_check_accepts_plain_arguments():
    assert reader(PLAIN)._plain.surely({"string": "a", "integer": 1, "number": 2, "boolean": True})


@pytest.mark.parametrize(
    "property",
    [{"type": "string", "maxLength": 3}, {"type": ["string", "null"]}, {"enum": ["a"]}, {"type": "array"}, True],
)
def test_other_schema_keywords_are_left_to_the_validator(property):
    assert reader({"type": "object", "properties": {"a": property}})._plain is None
