"""The formats of Granite 3 and Phi-4-mini: templates modelled on theirs, and broken calls."""

from __future__ import annotations

import pytest
from chat_families import tokenizer_for
from hypothesis import given
from hypothesis import strategies as st
from parser_contract import Call
from parser_formats.granite_format import FORMAT
from template_calls import calls_of, written_turn

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers import tool_parsers
from agentrl.chat.parsers.choice import find_format
from agentrl.chat.parsers.marked.json_lists import END, MARK

WEATHER = ParsedCall("weather", '{"city": "Paris"}')
LIST = '[{"name": "weather", "arguments": {"city": "Paris"}}]'
ENDS = {"granite": "", "phi4": END}
CALLS = f"""
        {{%- if m.tool_calls %}}{{{{- '{MARK}[' }}}}
            {{%- for call in m.tool_calls %}}
                {{{{- ', ' if not loop.first }}}}
                {{{{- '{{"name": "' + call.function.name + '", "arguments": ' }}}}
                {{{{- call.function.arguments | tojson + '}}' }}}}
            {{%- endfor %}}{{{{- ']CLOSE' }}}}
        {{%- endif %}}"""
LINE_END = '{{- "\\n" }}'
# Like Granite 3: roles between marks
GRANITE = f"""
{{%- for m in messages %}}
    {{{{- '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content }}}}{CALLS.replace("CLOSE", "")}
    {{{{- '<|end_of_text|>' }}}}{LINE_END}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{- '<|start_of_role|>assistant<|end_of_role|>' }}}}{{% endif %}}"""
# Like Phi-4-mini: the role is the mark
PHI4 = f"""
{{%- for m in messages %}}
    {{{{- '<|' + m.role + '|>' + m.content }}}}{CALLS.replace("CLOSE", END)}
    {{{{- '<|end|>' }}}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{- '<|assistant|>' }}}}{{% endif %}}"""
TEMPLATES = pytest.mark.parametrize(
    ("name", "template", "begin", "end"),
    [
        ("granite", GRANITE, "<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>"),
        ("phi4", PHI4, "<|assistant|>", "<|end|>"),
    ],
)
BOTH = pytest.mark.parametrize("name", ["granite", "phi4"])


def parse(name: str, text: str) -> ParsedTurn:
    return tool_parsers.get(name)().parse(text)


@TEMPLATES
@given(calls=FORMAT.calls(), content=st.sampled_from(["", "Größe: 日本 🙂\n{x}"]))
def test_calls_of_templates(name: str, template: str, begin: str, end: str, calls: list[Call], content: str) -> None:
    text = written_turn(tokenizer_for(template), calls, begin, end, content=content)
    turn = parse(name, text)
    assert (calls_of(turn), turn.content, turn.thinking) == (calls, content, "")


@TEMPLATES
def test_automatic_choice(name: str, template: str, begin: str, end: str) -> None:
    tokenizer = tokenizer_for(template)
    tokenizer.add_special_tokens({"additional_special_tokens": [begin, end]})
    found = find_format(ChatFormat(tokenizer))
    assert (found.name, found.problem) == (name, "")


@BOTH
def test_ways_to_write_a_call(name: str) -> None:
    call = MARK + LIST + ENDS[name]
    other = {"granite": f"<tool_call> {LIST}", "phi4": f"functools{LIST}"}[name]
    for text in (call, f"{call}\n", call.replace("[", "\n [ "), other):
        assert parse(name, text) == ParsedTurn("", (WEATHER,))
        assert parse(name, f"<think>\nHm.\n</think>\n\nI look.\n{text}") == ParsedTurn("I look.", (WEATHER,), "Hm.")
    assert parse(name, f"{call}{call} So.") == ParsedTurn("So.", (WEATHER, WEATHER))
    assert parse(name, f"<think>\nHm. {call}") == ParsedTurn("", thinking=f"Hm. {call}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("granite", "Write <tool_call> [x"[:-4]),
        ("granite", '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'),
        ("phi4", "Use functools[1]."),
        ("phi4", "functools.partial"),
        ("granite", LIST),
        ("phi4", LIST),
    ],
)
def test_text_that_is_no_call(name: str, text: str) -> None:
    assert parse(name, text) == ParsedTurn(text.strip())


@BOTH
@pytest.mark.parametrize(
    ("text", "called", "says"),
    [
        (MARK, "", "not valid JSON: Expecting value"),
        (MARK + LIST[:-1], "", "not valid JSON"),
        (f"{MARK}[]", "", "is empty"),
        (MARK + LIST[1:-1], "", "an object, not a list"),
        (f"{MARK}[1]", "", "a number, not a JSON object"),
        (MARK + LIST.replace("arguments", "args"), "weather", 'no "arguments"'),
        (MARK + LIST.replace('"Paris"', "1e999"), "weather", "too large"),
    ],
)
def test_malformed_calls(name: str, text: str, called: str, says: str) -> None:
    (call,) = parse(name, text).calls
    assert call.name == called
    assert says in str(call.error)
    assert f'. Write {MARK}[{{"name": "...", "arguments": {{...}}}}]{ENDS[name]}' in str(call.error)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("phi4", MARK + LIST, "nothing follows"),
        ("phi4", f"{MARK}{LIST[:-1]}, {LIST[1:]} So.", "'So.' follows"),
        ("granite", f"{MARK}{LIST}\n{END}", f"'{END}' follows"),
    ],
)
def test_lists_without_their_end(name: str, text: str, says: str) -> None:
    (call,) = parse(name, text).calls
    assert (call.name, call.arguments) == ("", text.removeprefix(MARK))
    assert f"does not end as it should: {says}" in str(call.error)
