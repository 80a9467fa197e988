"""Conversations for SFT: which rows are read, and which are refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.config.data import DataConfig
from agentrl.data.dialogues import load_dialogues
from agentrl.errors import DataError

SCHEMA = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
USER = {"role": "user", "content": "2*3?"}
ANSWER = {"role": "assistant", "content": "6"}


def call(arguments):
    function = {"name": "calculator", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c0", "type": "function", "function": function}],
    }


def load(tmp_path, *rows, **config):
    path = tmp_path / "sft.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_dialogues([str(path)], DataConfig(**config))


@pytest.mark.parametrize("tools", [[SCHEMA], json.dumps([SCHEMA]), [SCHEMA["function"]]])
@pytest.mark.parametrize("arguments", [{"expression": "2*3"}, '{"expression": "2*3"}'])
def test_tools_and_arguments_are_read_in_both_forms(tmp_path, tools, arguments):
    messages = [USER, call(arguments), {"role": "tool", "content": "6", "tool_call_id": "c0"}, ANSWER]
    (dialogue,) = load(tmp_path, {"messages": messages, "tools": tools})
    assert dialogue.messages[1] == {
        "role": "assistant",
        "tool_calls": [
            {"id": "c0", "type": "function", "function": {"name": "calculator", "arguments": {"expression": "2*3"}}}
        ],
    }
    assert [tool.for_template() for tool in dialogue.tools] == [SCHEMA]


def test_dialogues_are_read_from_parquet(tmp_path):
    path = tmp_path / "sft.parquet"
    rows = [{"messages": [USER, ANSWER]}, {"messages": [USER, call({"expression": "2*3"})], "tools": [SCHEMA]}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    plain, calling = load_dialogues([str(path)], DataConfig())
    assert (plain.messages, plain.tools) == ([USER, ANSWER], None)
    assert calling.messages[1]["tool_calls"][0]["function"]["arguments"] == {"expression": "2*3"}


def test_system_prompt_is_added_unless_the_row_has_one(tmp_path):
    own = {"role": "developer", "content": "Mine."}
    first, second = load(
        tmp_path, {"messages": [USER, ANSWER]}, {"messages": [own, USER, ANSWER]}, system_prompt="Yours."
    )
    assert first.messages[0] == {"role": "system", "content": "Yours."}
    assert second.messages[0] == own


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"message": [USER, ANSWER]}, "no field 'messages', expected a list of messages; did you mean 'message'?"),
        ({"messages": [USER]}, "no assistant turn"),
        ({"messages": [USER, USER, ANSWER]}, "field 'messages[1]': two user messages in a row"),
        ({"messages": [USER, ANSWER, ANSWER]}, "field 'messages[2]': two assistant messages in a row"),
        (
            {"messages": [USER, {"role": "asistant", "content": "6"}]},
            "unknown role 'asistant': did you mean 'assistant'?",
        ),
        (
            {"messages": [USER, ANSWER, {"role": "system", "content": "x"}]},
            "field 'messages[2]': a system message must",
        ),
        ({"messages": [USER, ANSWER, {"role": "tool", "content": "6"}]}, "this tool message answers no tool call"),
        ({"messages": [USER, {"role": "assistant"}]}, "field 'messages[1].content': expected text"),
        ({"messages": [USER, call("{oops")]}, "field 'messages[1].tool_calls[0].arguments': not JSON"),
        (
            {"messages": [USER, call("[1]")]},
            "field 'messages[1].tool_calls[0].arguments': expected an object, got a list",
        ),
        ({"messages": [USER, call({}) | {"tool_calls": ["x"]}]}, "tool_calls[0]': expected an object {function"),
        ({"messages": [USER, ANSWER], "tools": "{"}, "field 'tools': not JSON"),
        ({"messages": [USER, ANSWER], "tools": "{}"}, "field 'tools': expected a list of tool schemas"),
        ({"messages": [USER, ANSWER], "tools": [{"function": {}}]}, "field 'tools[0].function.name': Field required"),
    ],
)
def test_a_bad_dialogue_is_named(tmp_path, row, expected):
    with pytest.raises(DataError) as caught:
        load(tmp_path, {"messages": [USER, ANSWER]}, row)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/sft.jsonl row 1 (line 2): ")
    assert expected in text
    assert "\n" not in text


def test_variables_of_the_chat_template(tmp_path):
    (dialogue,) = load(tmp_path, {"messages": [USER, ANSWER], "chat_template_kwargs": {"enable_thinking": False}})
    assert dialogue.variables == {"enable_thinking": False}
    with pytest.raises(DataError, match=r"row 0 .*field 'chat_template_kwargs.a': expected text, a number"):
        load(tmp_path, {"messages": [USER, ANSWER], "chat_template_kwargs": '{"a": {}}'})
