"""Details of qwen3_coder, pythonic, llama3_json and mistral that the contract does not cover."""

from __future__ import annotations

import ast
import json

import pytest
from pydantic import JsonValue

from agentrl.chat.base import ParsedCall, ParsedTurn, parser_for
from agentrl.chat.parsers import tool_parsers
from agentrl.chat.parsers.python_text import BadPythonError, read_literal
from agentrl.types.messages import FunctionSchema, ToolSchema

WEATHER = ParsedCall("weather", '{"city": "Paris", "days": 2}')
PROPERTIES: dict[str, JsonValue] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "items": {"type": "array"},
    "options": {"type": "object"},
    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "name": {"type": ["null", "string"]},
    "any": {},
}
TOOL = ToolSchema(function=FunctionSchema(name="f", parameters={"type": "object", "properties": PROPERTIES}))


def parse(name: str, text: str) -> ParsedTurn:
    return parser_for(tool_parsers.get(name)(), [TOOL]).parse(text)


def only(turn: ParsedTurn) -> ParsedCall:
    (call,) = turn.calls
    return call


# ---- as models write them ------------------------------------------------------------------------------------------

LIST = '[{"name": "weather", "arguments": {"city": "Paris", "days": 2}}]'
NEWER = 'weather[ARGS]{"city": "Paris", "days": 2}'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", f"[TOOL_CALLS] {LIST}"),
        ("mistral", f"[TOOL_CALLS]{LIST}"),
        ("mistral", f"[TOOL_CALLS]{NEWER}"),
        ("mistral", '[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Paris", "days": 2}'),
        ("mistral", '[TOOL_CALLS]weather{"city": "Paris", "days": 2}'),
        ("llama3_json", '{"name": "weather", "parameters": {"city": "Paris", "days": 2}}'),
        ("llama3_json", '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris", "days": 2}}'),
        ("llama3_json", '{"type": "function", "name": "weather", "parameters": {"city": "Paris", "days": 2}}'),
        ("llama3_json", '{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\", \\"days\\": 2}"}'),
        ("llama3_json", '<|python_tag|>weather.call(city="Paris", days=2)'),
        ("pythonic", '[weather(city="Paris", days=2)]'),
        ("pythonic", "<|tool_call_start|>[weather(city='Paris', days=2)]<|tool_call_end|>"),
        ("pythonic", "<|python_start|>[weather(city='Paris', days=2,)]<|python_end|>"),
        ("pythonic", "```tool_code\n[weather(city='Paris', days=2)]\n```"),
        ("pythonic", "[\n  weather(\n    city='Paris',\n    days = 2\n  ),\n]"),
    ],
)
def test_ways_to_write_a_call(name: str, text: str) -> None:
    turn = parse(name, text)
    assert turn.calls[:1] == (WEATHER,)
    assert (len(turn.calls) > 1) == text.endswith(",\n]")  # a comma after the last call of a list is a mistake
    assert parse(name, f"<think>\nHm\n</think>\n\n{text}") == ParsedTurn(turn.content, turn.calls, "Hm")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_json", '{"answer": {"name": "Ann", "age": 3}}'),
        ("llama3_json", 'So: {"name": "weather", "parameters": {}}'),
        ("pythonic", "The call is [weather(city='Paris')], I think."),
        ("pythonic", "[1, 2] and [a](https://a.org)\n[x]"),
        ("qwen3_coder", "Write <function=weather> to call it."),
        ("mistral", LIST),
    ],
)
def test_text_that_is_no_call(name: str, text: str) -> None:
    assert parse(name, text) == ParsedTurn(text)


# ---- qwen3_coder ----------------------------------------------------------------------------------------------------


def xml(**values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<function=f>\n{parameters}</function>"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        *[("text", text, text) for text in ("1", "null", "true", '{"a": 1}', "\n two lines\n\n", "", "</parameter> x")],
        *[("count", "12", 12), ("count", " 12\n", 12), ("count", "1.5", "1.5"), ("count", "many", "many")],
        *[("count", "true", "true"), ("ratio", "0.5", 0.5), ("ratio", "3", 3), ("ratio", "1e-05", 1e-05)],
        *[("flag", "True", True), ("flag", "false", False), ("flag", "yes", "yes"), ("flag", "1", "1")],
        *[("items", '["a", 1]', ["a", 1]), ("items", "['a', True]", ["a", True]), ("items", "a, b", "a, b")],
        *[("options", '{"a": null}', {"a": None}), ("options", "{'a': None}", {"a": None}), ("options", "[1]", "[1]")],
        *[("maybe", "None", None), ("maybe", "null", None), ("maybe", "4", 4), ("maybe", "four", "four")],
        *[("name", "None", None), ("name", "Nora", "Nora"), ("any", "1", "1"), ("unknown", "1", "1")],
    ],
)
def test_types_of_arguments_come_from_the_schema(key: str, text: str, value: JsonValue) -> None:
    call = only(parse("qwen3_coder", f"<tool_call>\n{xml(**{key: text})}\n</tool_call>"))
    assert (json.loads(call.arguments), call.error) == ({key: value}, None)


def test_without_schemas_arguments_are_text() -> None:
    call = only(tool_parsers.get("qwen3_coder")().parse(f"<tool_call>\n{xml(count='1')}\n</tool_call>"))
    assert call.arguments == '{"count": "1"}'


def test_omitted_and_repeated_marks() -> None:
    assert parse("qwen3_coder", f"So.\n{xml()}") == ParsedTurn("So.", (ParsedCall("f", "{}"),))
    two = parse("qwen3_coder", f"<tool_call>{xml()}\n{xml(count='1')}</tool_call> after")
    assert two == ParsedTurn("after", (ParsedCall("f", "{}"), ParsedCall("f", '{"count": 1}')))
    assert parse("qwen3_coder", f"<tool_call>{xml()}").calls == (ParsedCall("f", "{}"),)


# ---- mistakes of the model ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "tool", "says"),
    [
        (
            "qwen3_coder",
            '<tool_call>\n{"name": "f"}\n</tool_call>',
            "",
            "does not begin with <function=name>",
        ),
        ("qwen3_coder", "<tool_call>\n</tool_call>", "", "but with '</tool_call>'"),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>1</tool_call>", "f", "no </function> after complete"),
        ("qwen3_coder", f"<tool_call>{xml(count='1')[:-11]}</tool_call>", "f", "<parameter=count>"),
        ("qwen3_coder", f"<tool_call>{xml(a='1')[:-11]}{xml(a='2')[13:]}</tool_call>", "f", "parameter 'a' twice"),
        ("qwen3_coder", "<tool_call><function=f> text </function></tool_call>", "f", "'text </function></to' follows"),
        ("llama3_json", '{"name": "f", "parameters": {"a": }}', "", "not valid JSON: Expecting value"),
        ("llama3_json", '{"name": "f", "parameters": {}}; {"name": "g"', "", "not valid JSON"),
        ("llama3_json", '{"name": "f"}', "f", 'has no "parameters"; write {}'),
        (
            "llama3_json",
            '{"name": "f", "parameters": [1]}',
            "f",
            '"parameters": expected a JSON object',
        ),
        ("llama3_json", "<|python_tag|>print(1)", "", "not valid JSON"),
        ("llama3_json", "<|python_tag|>f.call(1)", "", "expected argument=value near '1)'"),
        ("pythonic", "[f(1)]", "f", "expected argument=value near '1)]'"),
        ("pythonic", "[f(a=1), g(b=", "g", "expected a value where it ends"),
        ("pythonic", "[f(a=1)", "", "expected ',' or ']' where it ends"),
        ("pythonic", "[f(a=b)]", "f", "'b' is not a literal"),
        ("pythonic", "[f(a=1, a=2)]", "f", "the argument 'a' is written twice"),
        ("pythonic", "[f(a='x)]", "f", "a string is not closed, near"),
        ("pythonic", "[f(a='x' 'y')]", "f", "expected ',' or ')' near"),
        ("pythonic", "[f(a={1: 2})]", "f", "expected a key that is a string near '1: 2"),
        ("pythonic", f"[f(a={'[' * 200})]", "f", "nested too deeply"),
        ("pythonic", f"[f(a={'9' * 5000})]", "f", "a number in it is too long"),
        ("pythonic", "[f(a=1e999)]", "", "a number in it is too large"),
        ("pythonic", "<|tool_call_start|>f(a=1)<|tool_call_end|>", "", "are not in a list"),
        ("mistral", "[TOOL_CALLS] []", "", "The list of tool calls is empty."),
        ("mistral", '[TOOL_CALLS] [{"name": "f", ', "", "not valid JSON"),
        ("mistral", '[TOOL_CALLS] [{"name": "f"}]', "f", 'has no "arguments"'),
        ("mistral", "[TOOL_CALLS] [1]", "", "The tool call is a number, not a JSON object"),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": ', "f", "not valid JSON"),
        ("mistral", "[TOOL_CALLS]f[ARGS][1]", "", "no name before its arguments"),
        ("mistral", '[TOOL_CALLS]{"a": 1}', "", "no name before its arguments"),
    ],
)
def test_errors_name_the_problem_and_the_form(name: str, text: str, tool: str, says: str) -> None:
    call = parse(name, text).calls[-1]
    assert call.name == tool
    assert says in str(call.error)
    assert " Write " in str(call.error)
    assert call.arguments in text


# ---- Python literals ------------------------------------------------------------------------------------------------

SCALARS = [
    "'a'",
    '"a"',
    r"'\n\t\\\'\"\x41\u00e9\U0001f642\101'",
    "'a\\\nb'",
    "1",
    "-1",
    "+2",
    "1.5",
    "1e5",
    "-2E-3",
    ".5",
]
NESTED = ["[]", "[1, 'a', [None]]", "(1)", "[1,]", "[ 1 ,\n2 ]", "{}", "{'a': {'b': [True]}}", "{'a': 1,}"]
TUPLES = ["()", "(1,)", "(1, 2)", "{'a': (1, 'b')}", "{'a': 1, 'a': 2}"]


@pytest.mark.parametrize("text", [*SCALARS, *NESTED, *TUPLES])
def test_literals_are_those_of_python(text: str) -> None:
    """Tuples become lists, as in JSON."""
    assert read_literal(text, 0) == (json.loads(json.dumps(ast.literal_eval(text))), len(text))


def test_json_and_other_text_in_literals() -> None:
    assert read_literal('{"a": [true, false, null, "\\ud83d\\ude42"]}', 0)[0] == {"a": [True, False, None, "🙂"]}
    assert read_literal("'two\nlines \\d'", 0)[0] == "two\nlines \\d"


@pytest.mark.parametrize(
    "text", ["", "x", "f(1)", "1_000", "0x10", "1j", "lambda: 1", "b'a'", "f'{x}'", "[1 2]", "{1}"]
)
def test_other_text_is_no_literal(text: str) -> None:
    with pytest.raises(BadPythonError):
        read_literal(text, 0)
