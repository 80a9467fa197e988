"""The format of Muse Glimmer: its public template, and messages that the contract does not cover."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parser_contract import Call
from parser_formats.muse_glimmer_format import FORMAT, NEXT
from public_templates import public_tokenizer
from pydantic import JsonValue
from template_calls import calls_of, needs_public_templates, written_turn

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers.choice import find_format
from agentrl.chat.parsers.marked.muse_glimmer import MuseGlimmerParser
from agentrl.chat.parsers.thinking import plain_turn
from agentrl.types.messages import FunctionSchema, ToolSchema

PROPERTIES: dict[str, JsonValue] = {"city": {"type": "string"}, "days": {"type": "integer"}}
TOOL = ToolSchema(function=FunctionSchema(name="weather", parameters={"type": "object", "properties": PROPERTIES}))
WEATHER = ParsedCall("weather", '{"city": " 2\\n", "days": 2}')
INVOKE = (
    '<atem:invoke name="weather">\n<atem:parameter name="city"> 2\n</atem:parameter>\n'
    '<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n'
)
BODY = f"<atem:function_calls>\n{INVOKE}</atem:function_calls>"
CALL = f" to=weather<|message|>{BODY}"


def parse(text: str) -> ParsedTurn:
    return MuseGlimmerParser([TOOL]).parse(text)


@needs_public_templates
@given(calls=FORMAT.calls(), thoughts=st.sampled_from(["", "Größe: 日本 🙂\n\n{x}"]))
def test_calls_of_the_public_template(calls: list[Call], thoughts: str) -> None:
    fields = {"content": "", "reasoning_content": thoughts}
    text = written_turn(public_tokenizer("muse_glimmer"), calls, "<|start|>assistant", "<|eot|>", **fields)
    turn = FORMAT.parser(calls).parse(text)
    assert (calls_of(turn), turn.content, turn.thinking) == (calls, "", thoughts)


@needs_public_templates
def test_answers_of_the_public_template() -> None:
    fields = {"content": "Hello\nyou", "reasoning_content": "Greet."}
    text = written_turn(public_tokenizer("muse_glimmer"), [], "<|start|>assistant", "<|eot|>", **fields)
    assert parse(text) == ParsedTurn("Hello\nyou", thinking="Greet.")


@needs_public_templates
def test_automatic_choice() -> None:
    found = find_format(ChatFormat(public_tokenizer("muse_glimmer")))
    assert (found.name, found.problem) == ("muse_glimmer", "")


def test_ways_to_write_a_call() -> None:
    compact = CALL.replace(">\n<", "><")
    for text in (CALL, f"{CALL}<|eom|>", f"{CALL}\n", compact, CALL.replace("weather", "weather.weather")):
        assert parse(text) == ParsedTurn("", (WEATHER,))
        assert parse(f" to=self<|message|>Hm.{NEXT}{text}") == ParsedTurn("", (WEATHER,), "Hm.")
        assert parse(f" to=user<|message|>So.{NEXT}{text}") == ParsedTurn("So.", (WEATHER,))
    assert parse(CALL.replace(INVOKE, INVOKE + INVOKE)) == ParsedTurn("", (WEATHER, WEATHER))
    assert parse(f"{CALL}{NEXT}{CALL}") == ParsedTurn("", (WEATHER, WEATHER))
    other = f" to=self<|message|>More. {BODY}{NEXT} to=user<|message|>So."
    assert parse(f" to=self<|message|>Hm.{NEXT}{other}") == ParsedTurn("So.", (), f"Hm.\nMore. {BODY}")


@pytest.mark.parametrize("text", ["Hello", "<|message|>Hello", " to=user<|message|>Hello", f"<|message|>Use {BODY}"])
def test_text_that_is_no_call(text: str) -> None:
    content = text.partition("<|message|>")[2] or text
    assert parse(text) == plain_turn(MuseGlimmerParser(), text) == ParsedTurn(content)


def test_a_tool_may_have_a_doubled_name() -> None:
    doubled = ToolSchema(function=FunctionSchema(name="weather.weather"))
    text = CALL.replace("weather", "weather.weather")
    assert [call.name for call in MuseGlimmerParser([TOOL, doubled]).parse(text).calls] == ["weather.weather"]
    assert [call.name for call in MuseGlimmerParser().parse(text).calls] == ["weather.weather"]


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (" to=weather", "", "has 'to=weather' instead of <atem:function_calls>"),
        (" to=weather<|message|>", "", "has nothing instead of <atem:function_calls>"),
        (" to=weather<|message|>{}", "", "has '{}' instead of <atem:function_calls>"),
        (CALL.removesuffix("</atem:function_calls>"), "weather", "has nothing instead of an invocation or the end"),
        (CALL.replace("</atem:invoke>", ""), "weather", "instead of a parameter or </atem:invoke>"),
        (CALL.replace("2</atem:parameter>", "2"), "weather", "instead of a parameter or </atem:invoke>"),
        (CALL.replace("invoke name=", "invoke tool="), "", "instead of an invocation or the end"),
        (CALL.replace("days", "city"), "weather", "parameter 'city' twice"),
        (f"{CALL} So.", "weather", "instead of an invocation or the end"),
        (CALL.replace("weather", "\ud800"), "", "not text"),
    ],
)
def test_malformed_calls(text: str, name: str, says: str) -> None:
    (call,) = parse(text).calls
    assert call.name == name
    assert says in str(call.error)
    assert ". Write to=name<|message|><atem:function_calls>" in str(call.error)
    assert call.arguments in text
