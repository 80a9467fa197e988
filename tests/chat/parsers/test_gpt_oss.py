"""The format of gpt-oss: its public template, and messages that the contract does not cover."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parser_contract import Call
from parser_formats.gpt_oss_format import FORMAT
from public_templates import public_tokenizer
from template_calls import calls_of, needs_public_templates, written_turn

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers.choice import find_format
from agentrl.chat.parsers.marked.gpt_oss import GptOssParser
from agentrl.chat.parsers.thinking import plain_turn

WEATHER = ParsedCall("weather", '{"city": "Paris"}')
BODY = '<|message|>{"city": "Paris"}'
CALL = f"<|channel|>commentary to=functions.weather <|constrain|>json{BODY}"
ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|>"
NEXT = "<|start|>assistant"


def parse(text: str) -> ParsedTurn:
    return GptOssParser().parse(text)


@needs_public_templates
@given(calls=FORMAT.calls(max_size=1), thoughts=st.sampled_from(["", "Größe: 日本 🙂\n\n{x}"]))
def test_calls_of_the_public_template(calls: list[Call], thoughts: str) -> None:
    fields = {"thinking": thoughts} if thoughts else {}
    text = written_turn(public_tokenizer("gptoss"), calls, NEXT, "<|call|>", **fields)
    turn = parse(text)
    assert calls_of(turn) == calls
    assert (turn.content, turn.thinking) == ("", thoughts)


@needs_public_templates
def test_answers_of_the_public_template() -> None:
    text = written_turn(public_tokenizer("gptoss"), [], NEXT, "<|return|>", content="Hello\nyou", thinking="Greet.")
    assert parse(text) == ParsedTurn("Hello\nyou", thinking="Greet.")


@needs_public_templates
def test_automatic_choice() -> None:
    assert find_format(ChatFormat(public_tokenizer("gptoss"))).name == "gpt_oss"


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"{CALL}<|call|>",
        f" to=functions.weather<|channel|>commentary json{BODY}",
        f" to=functions.weather<|channel|>commentary{BODY}",
        f"<|channel|>commentary to=functions.weather<|constrain|>json{BODY}",
        f"<|channel|>commentary  to=functions.weather code{BODY}",
        f"<|channel|>commentary to=weather{BODY}\n",
        f"<|channel|>analysis to=functions.weather json{BODY}",
        f" to=functions.weather{BODY}",
    ],
)
def test_ways_to_write_a_call(text: str) -> None:
    assert parse(text) == ParsedTurn("", (WEATHER,))
    assert parse(ANALYSIS + NEXT + text) == ParsedTurn("", (WEATHER,), "Hm.")
    assert parse(ANALYSIS + text) == ParsedTurn("", (WEATHER,), "Hm.")  # some samples omit <|start|>assistant


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        (f"{ANALYSIS}{NEXT}<|channel|>final<|message|>Sunny.", ParsedTurn("Sunny.", thinking="Hm.")),
        (f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}{CALL}", ParsedTurn("I look.", (WEATHER,))),
        (f"{CALL}<|call|>{NEXT}{CALL}", ParsedTurn("", (WEATHER, WEATHER))),
        (f"{ANALYSIS}{NEXT}{ANALYSIS}{NEXT}<|channel|>final<|message|>", ParsedTurn("", thinking="Hm.\nHm.")),
        ("<|channel|>final<|message|>One.<|end|><|channel|>final<|message|>Two.", ParsedTurn("One.\nTwo.")),
        ("<|channel|>analysis<|message|>I could", ParsedTurn("", thinking="I could")),
        (f"<|channel|>analysis<|message|>like {CALL}", ParsedTurn("", thinking=f"like {CALL}")),
        (f"{ANALYSIS}{NEXT}", ParsedTurn("", thinking="Hm.")),
        (f"{ANALYSIS}{NEXT}<|channel|>fin", ParsedTurn("", thinking="Hm.")),
        ("<|channel|>analysis two words <|message|>Hm.", ParsedTurn("", thinking="Hm.")),
        ("Write to=functions.f, please", ParsedTurn("Write to=functions.f, please")),
        ("<|channel|>final<|message|>Write to=functions.f{}", ParsedTurn("Write to=functions.f{}")),
        ("Odd text <|message|>Sunny.", ParsedTurn("Odd text <|message|>Sunny.")),
        ("", ParsedTurn("")),
    ],
)
def test_messages_of_a_turn(text: str, turn: ParsedTurn) -> None:
    assert parse(text) == turn


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("<|channel|>commentary to=functions.wea", "", "ends before <|message|>"),
        (" to=functions.weather", "", "ends before <|message|>"),
        ("<|channel|>commentary to=functions.weather json<|message|>", "weather", "not valid JSON"),
        ("<|channel|>commentary to=functions.weather json<|message|>{", "weather", "not valid JSON"),
        (f"{CALL} and more", "weather", "more than one JSON object"),
        (f"{CALL}{NEXT}<|channel|>final<|message|>x", "", "not closed"),
        ("<|channel|>commentary to=python code<|message|>print(1)", "python", "not valid JSON"),
        ("<|channel|>commentary to=functions.f<|message|>[1]", "f", "an array, not a JSON object"),
        ('<|channel|>commentary to=functions.f<|message|>{"a": 1e999}', "f", "too large"),
        (" to=functions.f<|channel|>commentary to=functions.g<|message|>{}", "", "header"),
        ("<|channel|>commentary to=functions.f <|channel|>commentary json<|message|>{}", "", "header"),
        ("Sure, to=functions.f three words <|message|>{}", "", "header"),
        ("<|channel|>commentary to=functions.\ud800<|message|>{}", "", "not text"),
    ],
)
def test_malformed_calls(text: str, name: str, says: str) -> None:
    (call,) = parse(text).calls
    assert call.name == name
    assert call.error is not None
    assert says in call.error
    assert call.error.endswith(
        'Write <|channel|>commentary to=functions.name <|constrain|>json<|message|>{"argument": "value"}<|call|>'
    )


def test_a_turn_whose_calls_are_not_read() -> None:
    final = "<|channel|>final<|message|>Sunny."
    assert plain_turn(GptOssParser(), ANALYSIS + NEXT + final) == ParsedTurn("Sunny.", thinking="Hm.")
    assert plain_turn(GptOssParser(), ANALYSIS + NEXT + CALL) == ParsedTurn(CALL, thinking="Hm.")
    assert plain_turn(GptOssParser(), "Sunny.") == ParsedTurn("Sunny.")
