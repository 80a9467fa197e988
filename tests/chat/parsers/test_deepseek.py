"""The formats of DeepSeek: public templates, a template modelled on V3.1's, and broken calls."""

from __future__ import annotations

import pytest
from chat_families import tokenizer_for
from hypothesis import given
from hypothesis import strategies as st
from parser_contract import Call
from parser_formats import deepseek_v3_1_format, deepseek_v3_format
from public_templates import public_tokenizer
from template_calls import calls_of, needs_public_templates, written_turn

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers import tool_parsers
from agentrl.chat.parsers.choice import find_format
from agentrl.chat.parsers.marked.deepseek import CALL, SECTION, SEPARATOR, DeepSeekV3Parser, DeepSeekV31Parser

ASSISTANT, END = "<｜Assistant｜>", "<｜end▁of▁sentence｜>"
CODE = '\n```json\n{"city": "Paris"}\n```'
WEATHER = ParsedCall("weather", '{"city": "Paris"}')
V3_CALL = f"{CALL[0]}function{SEPARATOR}weather{CODE}{CALL[1]}"
V31_CALL = f'{CALL[0]}weather{SEPARATOR}{{"city": "Paris"}}{CALL[1]}'
BOTH = pytest.mark.parametrize(("name", "call"), [("deepseek_v3", V3_CALL), ("deepseek_v3.1", V31_CALL)])

# Like DeepSeek-V3.1: arguments as text, thoughts end in the generation prompt if the model shall not think
V31_TEMPLATE = f"""
{{%- for message in messages %}}
    {{%- if message.role == 'user' %}}{{{{- '<｜User｜>' + message.content }}}}
    {{%- elif message.role == 'tool' %}}{{{{- '<output>' + message.content + '</output>' }}}}
    {{%- else %}}
        {{{{- '{ASSISTANT}</think>' + message.content }}}}
        {{%- for call in message.tool_calls or [] %}}
            {{%- if loop.first %}}{{{{- '{SECTION[0]}' }}}}{{% endif %}}
            {{{{- '{CALL[0]}' + call.function.name + '{SEPARATOR}' + call.function.arguments + '{CALL[1]}' }}}}
            {{%- if loop.last %}}{{{{- '{SECTION[1]}' }}}}{{% endif %}}
        {{%- endfor %}}
        {{{{- '{END}' }}}}
    {{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{- '{ASSISTANT}</think>' }}}}{{% endif %}}"""


@pytest.mark.slow
@needs_public_templates
@given(calls=deepseek_v3_format.FORMAT.calls(), content=st.sampled_from([None, "", "Größe: 日本 🙂\n{x}"]))
def test_calls_of_the_public_template(calls: list[Call], content: str | None) -> None:
    text = written_turn(public_tokenizer("deepseekv3"), calls, ASSISTANT, END, text=True, content=content)
    turn = DeepSeekV3Parser().parse(text)
    assert calls_of(turn) == calls
    assert (turn.content, turn.thinking) == (content or "", "")


@needs_public_templates
@given(calls=deepseek_v3_format.FORMAT.calls())
def test_calls_of_the_template_of_distilled_models(calls: list[Call]) -> None:
    """The template never ends the section of one call, and ends it after the second and the third."""
    text = written_turn(public_tokenizer("deepseek_r1_distill"), calls, ASSISTANT, CALL[1], text=True, content=None)
    assert calls_of(DeepSeekV3Parser().parse(text + CALL[1])) == calls


@given(calls=deepseek_v3_1_format.FORMAT.calls(), content=st.sampled_from(["", "Größe: 日本 🙂\n{x}"]))
def test_calls_of_a_template_like_that_of_v3_1(calls: list[Call], content: str) -> None:
    tokenizer = tokenizer_for(V31_TEMPLATE)
    text = written_turn(tokenizer, calls, f"{ASSISTANT}</think>", END, text=True, content=content)
    turn = DeepSeekV31Parser().parse(text)
    assert (calls_of(turn), turn.content, turn.thinking) == (calls, content, "")


@needs_public_templates
@pytest.mark.parametrize("name", ["deepseekv3", "deepseek_r1_distill"])
def test_automatic_choice(name: str) -> None:
    found = find_format(ChatFormat(public_tokenizer(name)))
    assert (found.name, found.problem) == ("deepseek_v3", "")


def test_automatic_choice_for_a_template_like_that_of_v3_1() -> None:
    found = find_format(ChatFormat(tokenizer_for(V31_TEMPLATE)))
    assert (found.name, found.problem) == ("deepseek_v3.1", "")


@BOTH
def test_ways_to_write_a_call(name: str, call: str) -> None:
    parser = tool_parsers.get(name)()
    for text in (call, SECTION[0] + call, SECTION[0] + call + SECTION[1], f"{SECTION[0]}\n{call}\n{SECTION[1]}"):
        assert parser.parse(text) == ParsedTurn("", (WEATHER,))
        assert parser.parse(f"<think>\nHm.\n</think>\n\nI look.{text}") == ParsedTurn("I look.", (WEATHER,), "Hm.")
    assert parser.parse(f"<think>\nHm. {call}") == ParsedTurn("", thinking=f"Hm. {call}")
    assert parser.parse(f"{SECTION[0]}{call}\n{call}{SECTION[1]}Done.") == ParsedTurn("Done.", (WEATHER, WEATHER))


def test_arguments_with_the_end_of_a_call() -> None:
    arguments = {"text": f"```{CALL[1]}{SECTION[1]}\n```json"}
    text = deepseek_v3_format.write("", [("f", arguments)])
    assert calls_of(DeepSeekV3Parser().parse(text)) == [("f", arguments)]


@pytest.mark.parametrize(
    ("name", "text", "called", "says"),
    [
        ("deepseek_v3", V3_CALL.removesuffix(CALL[1]), "weather", "not closed"),
        ("deepseek_v3", V3_CALL.replace("\n```<", "<"), "weather", "not closed"),
        ("deepseek_v3", V3_CALL.replace("{", "["), "weather", "not valid JSON"),
        ("deepseek_v3", V3_CALL.replace("function", "tool"), "", "does not begin with"),
        ("deepseek_v3", V31_CALL, "", "does not begin with"),
        ("deepseek_v3.1", V31_CALL.removesuffix(CALL[1]), "weather", "not closed"),
        ("deepseek_v3.1", V31_CALL.replace('{"city": "Paris"}', "[1]"), "weather", "an array, not a JSON object"),
        ("deepseek_v3.1", V31_CALL.replace('"Paris"', "1e999"), "weather", "too large"),
        ("deepseek_v3.1", V31_CALL.replace("}", "} {}"), "weather", "not closed"),
        ("deepseek_v3.1", V31_CALL.replace("weather", "\ud800"), "", "not text"),
        ("deepseek_v3.1", V3_CALL, "function", "not valid JSON"),
        ("deepseek_v3.1", SECTION[0], "", "No tool call follows"),
        ("deepseek_v3.1", SECTION[0] + CALL[0], "", "does not begin with"),
    ],
)
def test_malformed_calls(name: str, text: str, called: str, says: str) -> None:
    (call,) = tool_parsers.get(name)().parse(text).calls
    assert call.name == called
    assert call.error is not None
    assert says in call.error
    assert f". Write {SECTION[0]}{CALL[0]}" in call.error


def test_calls_after_a_malformed_call() -> None:
    turn = DeepSeekV31Parser().parse(f"{SECTION[0]}{CALL[0]}f{SEPARATOR}{{{V31_CALL}{SECTION[1]}")
    assert [call.error is None for call in turn.calls] == [False, True]
    assert turn.calls[1] == WEATHER
