"""Digests that survive a client's re-serialisation, and tell apart what differs."""

from __future__ import annotations

import json

import pytest
from session_builders import ADD

from agentrl.gateway.base import AnswerCall
from agentrl.gateway.matching import answer_digest, cleaned, message_digest, tools_digest
from agentrl.types.messages import FunctionSchema, ToolSchema, image_part


def assistant(text="", *arguments, **fields):
    calls = [{"id": "x", "type": "function", "function": {"name": "f", "arguments": each}} for each in arguments]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {}), **fields}


def digest(*messages):
    return [message_digest(each) for each in cleaned(messages)]


SAME = {
    "numbers": (assistant("", '{"a": 2.0, "b": 1e2}'), assistant("", '{"b":100,"a":2}')),
    "large numbers": (assistant("", '{"a": 12345678901234567890}'), assistant("", '{"a":12345678901234567000}')),
    "minus zero": (assistant("", '{"a": -0.0}'), assistant("", '{"a":0}')),
    "an object": (assistant("", '{"a": {"b": [1, null]}}'), assistant("", {"a": {"b": [1.0, None]}})),
    "escapes": (assistant("", '{"a": "\\u00e9\\/"}'), assistant("", '{"a":"é/"}')),
    "no arguments": (assistant("", ""), assistant("", "{}")),
    "blank": (assistant(" \n", "{}"), assistant("", "{}")),
    "no content": (assistant("", "{}"), assistant(None, "{}")),
    "thoughts": (assistant("hi", reasoning_content="so"), assistant("<think>so</think>\n\nhi")),
    "parts": (
        {"role": "user", "content": "ab"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a", "cache_control": {}}, {"type": "text", "text": "b"}],
        },
    ),
    "ids": (assistant("", "{}"), assistant("", "{}") | {"id": "message-1", "annotations": []}),
    "a tool's id": (
        {"role": "tool", "content": "5", "tool_call_id": "x"},
        {"role": "tool", "content": " 5\n"},
    ),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_the_same_message_written_again(pair):
    assert digest(pair[0]) == digest(pair[1])


DIFFERENT = {
    "a boolean": (assistant("", '{"a": true}'), assistant("", '{"a": 1}')),
    "a text": (assistant("", '{"a": "1"}'), assistant("", '{"a": 1}')),
    "a role": ({"role": "user", "content": "a"}, {"role": "tool", "content": "a"}),
    "more calls": (assistant("", "{}"), assistant("", "{}", "{}")),
    "spaces inside": (assistant("a b"), assistant("a  b")),
    "raw text": (assistant("", '{"a": '), assistant("", '{"b": ')),
    "an image": ({"role": "user", "content": [image_part("x")]}, {"role": "user", "content": [image_part("y")]}),
}


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_different_messages(pair):
    assert digest(pair[0]) != digest(pair[1])


def test_an_answer_has_the_digest_of_its_echo():
    arguments = '{"a": 2.0}'
    (echo,) = digest(assistant("Let me see. ", json.loads(arguments)))
    assert answer_digest("Let me see.", [AnswerCall("id", "f", arguments)]) == echo


def test_pieces_of_a_turn_are_joined():
    pieces = assistant("<think>\nso\n</think>"), assistant("a"), assistant("", "{}")
    assert digest(*pieces) == digest(assistant("a", "{}"))


def test_empty_system_texts_are_dropped():
    assert cleaned([{"role": "system", "content": [{"type": "text", "text": ""}]}]) == []
    (message,) = cleaned([{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}])
    assert message["content"] == "Be brief."


def test_a_part_keeps_its_image_only():
    part = {**image_part("x"), "cache_control": {"type": "ephemeral"}}
    (message,) = cleaned([{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}])
    assert message["content"] == [image_part("x"), {"type": "text", "text": "What?"}]


def test_tools_are_told_apart():
    other = ToolSchema(function=FunctionSchema(name="add", description="Adds."))
    assert len({tools_digest([]), tools_digest([ADD]), tools_digest([other]), tools_digest([ADD, other])}) == 4


def test_deep_arguments_are_compared_as_text():
    deep = "[" * 100_000
    assert digest(assistant("", deep)) == digest(assistant("", f" {deep}"))
