"""The format of Muse Glimmer: the public template, messages, and broken calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parser_contract import Call
from parser_formats.muse_glimmer_format import FORMAT, NEXT, block
from public_templates import public_tokenizer
from template_calls import calls_of, needs_public_templates, written_turn

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers.choice import find_format
from agentrl.chat.parsers.marked.muse_glimmer import MuseGlimmerParser

WEATHER = ParsedCall("weather", '{"city": "Paris"}')
BLOCK = block(("weather", {"city": "Paris"}))
CALL = f" to=weather<|message|>{BLOCK}"
BEGIN = "<|start|>user<|message|>Hi<|eot|><|start|>assistant"


def parse(text: str) -> ParsedTurn:
    return MuseGlimmerParser().parse(text)


@needs_public_templates
@given(calls=FORMAT.calls(), thoughts=st.sampled_from(["", "So:\n{x}"]))
def test_calls_of_the_public_template(calls: list[Call], thoughts: str) -> None:
    text = written_turn(
        public_tokenizer("muse_glimmer"), calls, BEGIN, "<|eot|>", content="", reasoning_content=thoughts
    )
    turn = FORMAT.parser(calls).parse(text)
    assert (calls_of(turn), turn.content, turn.thinking) == (calls, "", thoughts)


@needs_public_templates
def test_answers_of_the_public_template() -> None:
    fields = {"content": "Größe: 日本 🙂", "reasoning_content": "So."}
    text = written_turn(public_tokenizer("muse_glimmer"), [], BEGIN, "<|eot|>", **fields)
    assert parse(text) == ParsedTurn("Größe: 日本 🙂", (), "So.")


@needs_public_templates
def test_automatic_choice() -> None:
    found = find_format(ChatFormat(public_tokenizer("muse_glimmer")))
    assert (found.name, found.problem) == ("muse_glimmer", "")


def test_messages_of_a_turn() -> None:
    turn = parse(f" to=self<|message|>Hm.{NEXT} to=user<|message|>I look.{NEXT}{CALL}<|eom|>")
    assert turn == ParsedTurn("I look.", (WEATHER,), "Hm.")
    assert parse(f"{CALL}{NEXT}{CALL}").calls == (WEATHER, WEATHER)
    assert parse(f" to=user<|message|>I look. {BLOCK} Done.") == ParsedTurn("I look. Done.", (WEATHER,))
    assert parse(f" to=self<|message|>Hm. {BLOCK}") == ParsedTurn("", (), f"Hm. {BLOCK}")
    assert parse("Without a header.") == ParsedTurn("Without a header.")
    assert parse(f"{CALL}<|eom|><|start|>assistant to=self").calls == (WEATHER,)


def test_turns_without_calls_have_the_same_thoughts() -> None:
    assert MuseGlimmerParser().split_thinking(f" to=self<|message|>Hm.{NEXT}{CALL}") == ("Hm.", BLOCK)


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (" to=weather<|message|>", "weather", "The message to 'weather' has no tool call"),
        (' to=weather<|message|>{"city": "Paris"}', "weather", "has no tool call"),
        (CALL.replace("<atem:invoke", "<invoke"), "", "No tool call follows <atem:function_calls>"),
        (CALL.replace("</atem:invoke>", ""), "weather", "no </atem:invoke> after its arguments"),
        (CALL.partition("Paris")[0], "weather", "no </atem:invoke> after its arguments"),
        (CALL.partition("Paris")[0] + f"<|eom|>{BLOCK}", "weather", "no </atem:invoke> after its arguments"),
        (CALL.replace('name="weather"', 'name=""'), "", "has no name"),
    ],
)
def test_malformed_calls(text: str, name: str, says: str) -> None:
    call = parse(text).calls[0]
    assert call.name == name
    assert call.error is not None
    assert says in call.error
    assert '. Write <atem:function_calls>\n<atem:invoke name="tool">' in call.error
