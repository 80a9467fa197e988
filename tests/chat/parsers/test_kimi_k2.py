"""The format of Kimi K2: a template modelled on Kimi's, and broken calls."""

from __future__ import annotations

import pytest
from chat_families import tokenizer_for
from hypothesis import given
from hypothesis import strategies as st
from parser_contract import Call
from parser_formats.kimi_k2_format import FORMAT
from template_calls import calls_of, written_turn

from agentrl.agent_loops.tool_calls import assistant_message, tool_messages
from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers.choice import find_format
from agentrl.chat.parsers.marked.kimi_k2 import ARGUMENTS, CALL, SECTION, KimiK2Parser
from agentrl.types.messages import Message

BEGIN, END = "<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"
ARGUMENTS_TEXT = '{"city": "Paris"}'
BODY = f'{ARGUMENTS}{{"city": "Paris"}}{CALL[1]}'
WRITTEN = f"{CALL[0]}functions.weather:0{BODY}"

# Like Kimi K2: the id of a call stands in place of its name
TEMPLATE = f"""
{{%- for message in messages %}}
    {{%- if message.role == 'assistant' %}}{{{{- '{BEGIN}' + message.content }}}}
    {{%- elif message.role == 'tool' %}}
        {{{{- '<|im_system|>tool<|im_middle|>## Return of ' + message.tool_call_id + '\\n' + message.content }}}}
    {{%- else %}}{{{{- '<|im_user|>' + message.role + '<|im_middle|>' + message.content }}}}
    {{%- endif %}}
    {{%- if message.tool_calls %}}
        {{{{- '{SECTION[0]}' }}}}
        {{%- for call in message.tool_calls %}}
            {{{{- '{CALL[0]}' + call.id + '{ARGUMENTS}' }}}}
            {{{{- call.function.arguments | tojson }}}}{{{{- '{CALL[1]}' }}}}
        {{%- endfor %}}
        {{{{- '{SECTION[1]}' }}}}
    {{%- endif %}}
    {{{{- '{END}' }}}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{- '{BEGIN}' }}}}{{% endif %}}"""


def parse(text: str) -> ParsedTurn:
    return KimiK2Parser().parse(text)


@given(calls=FORMAT.calls(), content=st.sampled_from(["", "Größe: 日本 🙂\n{x}"]))
def test_calls_of_a_template_like_kimis(calls: list[Call], content: str) -> None:
    turn = parse(written_turn(tokenizer_for(TEMPLATE), calls, BEGIN, END, content=content))
    assert (calls_of(turn), turn.content, turn.thinking) == (calls, content, "")


def test_automatic_choice() -> None:
    found = find_format(ChatFormat(tokenizer_for(TEMPLATE)))
    assert (found.name, found.problem) == ("kimi_k2", "")


@pytest.mark.parametrize(
    "head", ["functions.weather:0", " functions.weather:12 ", "weather:0", "weather", "\nweather\n"]
)
def test_ways_to_write_a_call(head: str) -> None:
    call = f"{CALL[0]}{head}{BODY}"
    for text in (call, SECTION[0] + call, f"{SECTION[0]}\n{call}\n{SECTION[1]}"):
        weather = ParsedCall("weather", ARGUMENTS_TEXT, call_id=head.strip())
        assert parse(text) == ParsedTurn("", (weather,))
        assert parse(f"<think>Hm.</think>I look.{text}") == ParsedTurn("I look.", (weather,), "Hm.")
    assert parse(f"<think>Hm. {call}") == ParsedTurn("", thinking=f"Hm. {call}")


def test_ids_that_the_model_wrote_are_those_of_the_answers() -> None:
    turn = parse(f"{SECTION[0]}{WRITTEN}{WRITTEN.replace(':0', ':1')}{SECTION[1]}")
    answers = tool_messages(turn.calls, ["a", "b"], 3)
    ids = ["functions.weather:0", "functions.weather:1"]
    assert [answer["tool_call_id"] for answer in answers] == ids
    message = assistant_message(turn, 3)
    assert [call["id"] for call in message["tool_calls"]] == ids
    chat = ChatFormat(tokenizer_for(TEMPLATE))
    text = chat.text(chat.extend(answers, (), turn_closed=True, history=[Message(role="user", content="Hi"), message]))
    assert "## Return of functions.weather:0\na" in text
    assert "## Return of functions.weather:1\nb" in text


def test_an_id_that_the_model_wrote_twice_is_replaced() -> None:
    turn = parse(f"{SECTION[0]}{WRITTEN}{WRITTEN}{CALL[0]}functions.f:2{BODY}{SECTION[1]}")
    answers = tool_messages(turn.calls, ["a", "b", "c"], 3)
    assert [answer["tool_call_id"] for answer in answers] == ["c00003000", "c00003001", "functions.f:2"]


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (WRITTEN.removesuffix(CALL[1]), "weather", "not closed"),
        (WRITTEN.removesuffix(BODY), "", "does not begin with"),
        (WRITTEN.replace("{", "("), "weather", "not valid JSON"),
        (WRITTEN.replace("}", "}}"), "weather", "not closed"),
        (WRITTEN.replace('{"city": "Paris"}', "null"), "weather", "null, not a JSON object"),
        (WRITTEN.replace("functions.weather:0", ""), "", "does not begin with"),
        (SECTION[0], "", "No tool call follows"),
    ],
)
def test_malformed_calls(text: str, name: str, says: str) -> None:
    (call,) = parse(text).calls
    assert call.name == name
    assert call.error is not None
    assert says in call.error
    assert f". Write {SECTION[0]}{CALL[0]}functions.name:0{ARGUMENTS}" in call.error
