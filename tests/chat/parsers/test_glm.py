"""The format of GLM: the public template, types of arguments, and broken calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parser_contract import Call
from parser_formats.glm_format import FORMAT
from public_templates import public_tokenizer
from pydantic import JsonValue
from template_calls import calls_of, needs_public_templates, written_turn

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers.choice import find_format
from agentrl.chat.parsers.marked.glm import GlmParser
from agentrl.types.messages import FunctionSchema, ToolSchema

PROPERTIES: dict[str, JsonValue] = {"city": {"type": "string"}, "days": {"type": "integer"}}
TOOL = ToolSchema(function=FunctionSchema(name="weather", parameters={"type": "object", "properties": PROPERTIES}))
WEATHER = ParsedCall("weather", '{"city": "2", "days": 2}')
WRITTEN = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>2</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)


def parse(text: str) -> ParsedTurn:
    return GlmParser([TOOL]).parse(text)


@needs_public_templates
@given(
    calls=FORMAT.calls(), content=st.sampled_from(["", "Größe: 日本 🙂\n{x}"]), thoughts=st.sampled_from(["", "So:"])
)
def test_calls_of_the_public_template(calls: list[Call], content: str, thoughts: str) -> None:
    tokenizer = public_tokenizer("glm4moe")
    text = written_turn(tokenizer, calls, "<|assistant|>", "</tool_call>", content=content, reasoning_content=thoughts)
    turn = FORMAT.parser(calls).parse(text + "</tool_call>")
    assert (calls_of(turn), turn.content, turn.thinking) == (calls, content, thoughts)


@needs_public_templates
def test_automatic_choice() -> None:
    found = find_format(ChatFormat(public_tokenizer("glm4moe")))
    assert (found.name, found.problem) == ("glm", "")


def test_ways_to_write_a_call() -> None:
    for text in (WRITTEN, f"\n{WRITTEN}\n", WRITTEN.replace("\n", ""), WRITTEN.replace("\n", "\n  ")):
        assert parse(text) == ParsedTurn("", (WEATHER,))
        assert parse(f"\n<think>Hm.</think>\nI look.{text}") == ParsedTurn("I look.", (WEATHER,), "Hm.")
    assert parse(f"{WRITTEN}\n{WRITTEN}Done.") == ParsedTurn("Done.", (WEATHER, WEATHER))
    assert parse("<tool_call>weather\n</tool_call>") == ParsedTurn("", (ParsedCall("weather", "{}"),))
    assert parse(f"<think>Hm. {WRITTEN}") == ParsedTurn("", thinking=f"Hm. {WRITTEN}")


def test_without_schemas_arguments_are_text() -> None:
    assert GlmParser().parse(WRITTEN).calls == (ParsedCall("weather", '{"city": "2", "days": "2"}'),)


def test_values_keep_their_text() -> None:
    value = "\n <arg_value>a</tool_call> </arg_value>\n"
    turn = parse(f"<tool_call>weather<arg_key>city</arg_key><arg_value>{value}</arg_value></tool_call>")
    assert calls_of(turn) == [("weather", {"city": value})]


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (WRITTEN.removesuffix("</tool_call>"), "weather", "no </tool_call> after its arguments, but '<arg_key>days"),
        (WRITTEN.removesuffix("</arg_value>\n</tool_call>"), "weather", "no </tool_call> after its arguments"),
        ("<tool_call>weather", "", "does not begin with a name, but with 'weather'"),
        ("<tool_call>", "", "does not begin with a name, but with nothing"),
        ('<tool_call>{"name": "weather"}</tool_call>', "", "does not begin with a name"),
        ("<tool_call>weather, please</tool_call>", "", "does not begin with a name"),
        (WRITTEN.replace("days", "city"), "weather", "parameter 'city' twice"),
        (WRITTEN.replace("<arg_value>2", "2"), "weather", "no </tool_call> after its arguments"),
        (WRITTEN.replace("weather", "\ud800"), "", "not text"),
    ],
)
def test_malformed_calls(text: str, name: str, says: str) -> None:
    (call,) = parse(text).calls
    assert call.name == name
    assert call.error is not None
    assert says in call.error
    assert ". Write <tool_call>name\n<arg_key>" in call.error
    assert call.arguments in text


def test_a_call_after_a_malformed_call() -> None:
    turn = parse(f"<tool_call>weather<arg_key>{WRITTEN} So.")
    assert [call.error is None for call in turn.calls] == [False, True]
    assert (turn.calls[1], turn.content) == (WEATHER, "So.")
