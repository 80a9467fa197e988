"""Rows of NeMo-Gym's datasets become tasks."""

from __future__ import annotations

import pytest

from agentrl.config.data import DataConfig
from agentrl.data.fields import FieldError
from agentrl.data.tasks import read_task


def read(**params):
    return read_task(DataConfig(), {"responses_create_params": params, "expected": 3}, 0)


def test_messages_become_the_prompt_and_other_columns_are_kept():
    asked = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    task = read(input=asked, tools=[{"type": "function", "name": "add", "parameters": {}}, {"type": "web_search"}])
    assert task.messages == asked
    assert task.tool_options.available_tools == ("add",)
    assert task.extra_info["expected"] == 3
    assert task.extra_info["responses_create_params"]["input"] == asked


def test_text_and_instructions():
    task = read(input="Hi", instructions="Be brief.")
    assert task.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert task.tool_options.available_tools == ()


def test_parts_calls_and_answers():
    task = read(
        input=[
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "A"}, {"type": "text", "text": "B"}],
            },
            {"type": "function_call", "name": "add", "arguments": '{"a": 1}', "call_id": "c"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
            {"role": "user", "content": "Go on."},
        ]
    )
    call = {"type": "function", "id": "c", "function": {"name": "add", "arguments": {"a": 1}}}
    assert task.messages == [
        {"role": "user", "content": "AB"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "user", "content": "Go on."},
    ]


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"input": 5}, "'responses_create_params.input': expected a list"),
        ({"input": [5]}, r"'responses_create_params.input\[0\]': expected an object"),
        ({"input": [{"role": "robot", "content": "x"}]}, "unknown role 'robot'"),
        ({"input": [{"type": "item_reference"}]}, "'item_reference' cannot be part of a prompt"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "expected text only"),
        ({"input": []}, "field 'prompt': expected a list of messages, got an empty one"),
        ({}, "field 'prompt': expected a list of messages, got an empty one"),
        ({"input": "x", "tools": "add"}, "'responses_create_params.tools': expected a list"),
    ],
)
def test_rows_that_are_no_requests(params, complaint):
    with pytest.raises(FieldError, match=complaint):
        read(**params)


def test_a_row_with_a_prompt_is_left_as_it_is():
    row = {"prompt": "Hi", "responses_create_params": {"input": "Bye"}}
    task = read_task(DataConfig(), row, 0)
    assert task.messages == [{"role": "user", "content": "Hi"}]
    assert task.tool_options.available_tools is None


def test_the_rows_own_selection_of_tools_is_kept():
    row = {"responses_create_params": {"input": "Hi"}, "tool_selection": ["add"]}
    assert read_task(DataConfig(), row, 0).tool_options.available_tools == ("add",)
