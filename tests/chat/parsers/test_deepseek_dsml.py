"""The format of DeepSeek-V3.2: a template that writes what the model's encoder writes, and broken calls."""

from __future__ import annotations

import pytest
from chat_families import tokenizer_for
from hypothesis import given
from hypothesis import strategies as st
from parser_contract import Call
from parser_formats.deepseek_v3_2_format import FORMAT
from pydantic import JsonValue
from template_calls import calls_of, written_turn

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers.choice import find_format
from agentrl.chat.parsers.marked.deepseek_dsml import DeepSeekV32Parser
from agentrl.types.messages import FunctionSchema, ToolSchema

BEGIN, END = "<｜Assistant｜>", "<｜end▁of▁sentence｜>"
TEMPLATE = f"""
{{%- for message in messages %}}
    {{{{- '{BEGIN}' if message.role == 'assistant' else '<｜User｜>' }}}}{{{{- message.content or '' }}}}
    {{%- if message.tool_calls %}}
        {{{{- '\\n\\n<｜DSML｜function_calls>\\n' }}}}
        {{%- for call in message.tool_calls %}}
            {{{{- '<｜DSML｜invoke name="' + call.function.name + '">\\n' }}}}
            {{%- for name, value in call.function.arguments | items %}}
                {{{{- '<｜DSML｜parameter name="' + name }}}}
                {{{{- '" string="' + ('true' if value is string else 'false') + '">' }}}}
                {{{{- value if value is string else value | tojson }}}}{{{{- '</｜DSML｜parameter>\\n' }}}}
            {{%- endfor %}}
            {{{{- '</｜DSML｜invoke>\\n' }}}}
        {{%- endfor %}}
        {{{{- '</｜DSML｜function_calls>' }}}}
    {{%- endif %}}
    {{{{- '{END}' if message.role == 'assistant' }}}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{- '{BEGIN}' }}}}{{% endif %}}"""
TRIP = ParsedCall("trip", '{"city": "2", "days": 2}')
WRITTEN = FORMAT.write("", [("trip", {"city": "2", "days": 2})]).strip()


def parse(text: str) -> ParsedTurn:
    return DeepSeekV32Parser().parse(text)


@pytest.mark.slow
@given(calls=FORMAT.calls(), content=st.sampled_from(["", "Größe: 日本 🙂\n{x}"]))
def test_calls_of_a_template(calls: list[Call], content: str) -> None:
    turn = parse(written_turn(tokenizer_for(TEMPLATE), calls, BEGIN, END, content=content))
    assert (calls_of(turn), turn.content, turn.thinking) == (calls, content, "")


def test_automatic_choice() -> None:
    found = find_format(ChatFormat(tokenizer_for(TEMPLATE)))
    assert (found.name, found.problem) == ("deepseek_v3.2", "")


def test_ways_to_write_a_call() -> None:
    section = WRITTEN.replace("function_calls", "tool_calls")
    bare = WRITTEN.replace("<｜DSML｜function_calls>\n", "").replace("</｜DSML｜function_calls>", "")
    for text in (WRITTEN, section, bare, WRITTEN.replace("\n", "")):
        assert parse(text) == ParsedTurn("", (TRIP,))
        assert parse(f"<think>Hm.</think>I look.\n\n{text}") == ParsedTurn("I look.", (TRIP,), "Hm.")
    assert parse(f"{WRITTEN}\n{WRITTEN}Done.") == ParsedTurn("Done.", (TRIP, TRIP))
    assert parse(f"<think>Hm. {WRITTEN}") == ParsedTurn("", thinking=f"Hm. {WRITTEN}")


def test_types_of_tags_without_marks_come_from_the_schema() -> None:
    properties: dict[str, JsonValue] = {"city": {"type": "string"}, "days": {"type": "integer"}}
    schema = ToolSchema(function=FunctionSchema(name="trip", parameters={"type": "object", "properties": properties}))
    text = WRITTEN.replace(' string="true"', "").replace(' string="false"', "")
    assert DeepSeekV32Parser([schema]).parse(text).calls == (TRIP,)
    assert parse(text).calls == (ParsedCall("trip", '{"city": "2", "days": "2"}'),)


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (WRITTEN.replace("true", "false").replace(">2", ">two"), "trip", "'city' is not valid JSON: Expecting value"),
        (WRITTEN.replace("true", "false").replace(">2", ">2 3"), "trip", "there is more after the value"),
        (WRITTEN.partition("</｜DSML｜invoke>")[0], "trip", "no </｜DSML｜invoke> after its arguments"),
        (WRITTEN.replace("days", "city"), "trip", "parameter 'city' twice"),
        (WRITTEN.replace("trip", ""), "", "has no name"),
        ("<｜DSML｜function_calls>", "", "No tool call follows <｜DSML｜function_calls>"),
        (WRITTEN.replace("trip", "\ud800"), "", "not text"),
    ],
)
def test_malformed_calls(text: str, name: str, says: str) -> None:
    (call,) = parse(text).calls
    assert call.name == name
    assert call.error is not None
    assert says in call.error
    assert '<｜DSML｜parameter name="argument" string="true">text</｜DSML｜parameter>' in call.error
