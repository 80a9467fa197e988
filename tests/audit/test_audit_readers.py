"""The audit's own readers: against the format descriptions, and against the parsers used in training."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.audit.calls import Call, read_hermes, read_react, told_apart
from agentrl.chat.parsers.hermes import HermesParser
from agentrl.chat.parsers.react import ReactParser

OPEN, CLOSE = "<tool_call>", "</tool_call>"
GOOD = OPEN + '{"name": "f", "arguments": {"a": 1}}' + CLOSE
F = Call("f", {"a": 1}, '{"name": "f", "arguments": {"a": 1}}')


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("just text ", "just text", ()),
        (f"Look: {GOOD} and on", "Look:  and on", (F,)),
        (f"<think>{GOOD}</think>{GOOD}", f"<think>{GOOD}</think>", (F,)),
        (f"begun in the prompt {GOOD}</think>x{GOOD}", f"begun in the prompt {GOOD}</think>x", (F,)),
        (f"{OPEN}{{broken{CLOSE}", "", (Call("", None, "{broken"),)),
        (f'{OPEN}{{"name": "f", "arguments": 3}}{CLOSE}', "", (Call("f", None, '{"name": "f", "arguments": 3}'),)),
        (f'{OPEN}{{"name": "f", "arguments": "{{}}"}}', "", (Call("f", None, '{"name": "f", "arguments": "{}"}'),)),
    ],
)
def test_hermes_calls_are_read_as_written(text, content, calls):
    found = read_hermes(text)
    assert (found.together, found.calls) == (content, calls)


def test_argument_may_contain_a_closing_tag():
    (call,) = read_hermes(f'{OPEN}{{"name": "f", "arguments": {{"t": "{CLOSE}"}}}}{CLOSE}').calls
    assert call.arguments == {"t": CLOSE}


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('Thought: so\nAction: f\nAction Input: {"a": 1}\n', "Thought: so", (Call("f", {"a": 1}, '{"a": 1}'),)),
        ("Action: f\nThought: no", "Thought: no", (Call("f", None, ""),)),
        ("Final Answer: 3\nAction: f", "Final Answer: 3\nAction: f", ()),
        ("Action: f\nAction Input: {}\nObservation: 3\nAction: g", "", (Call("f", {}, "{}"),)),
    ],
)
def test_react_calls_are_read_as_written(text, content, calls):
    found = read_react(text)
    assert (found.together, found.calls) == (content, calls)


HERMES_PARTS = [OPEN, CLOSE, "<think>", "</think>", '{"name": "f", "arguments": ', '{"a": 1}', '"{}"', "}", "{", "NaN"]
HERMES_PARTS += [
    " ",
    "\n",
    "text",
    "null",
    "[1]",
    '{"name": 3}',
    '{"arguments": {}}',
    "1e999",
    GOOD,
    "\ud800",
    '"\\ud800"',
]
REACT_PARTS = ["Thought:", "Action:", "Action Input:", "Observation:", "Final Answer:", "\n", "**", "- ", " f ", "{}"]
REACT_PARTS += ["<think>", "</think>", '{"a": 1}', "[1]", "`", "json", "text", '"{}"', "NaN", "\ud800"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("read", "parser", "parts"),
    [(read_hermes, HermesParser(), HERMES_PARTS), (read_react, ReactParser(), REACT_PARTS)],
)
@settings(max_examples=4 * settings.default.max_examples)
@given(data=st.data())
def test_audit_parsers_agree_with_training_parsers(read, parser, parts, data):
    text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=14)))
    said, parsed = read(text), parser.parse(text)
    assert told_apart(said) == (parsed.content, parsed.thinking.strip())
    assert [call.name for call in said.calls] == [call.name for call in parsed.calls]
    for call, other in zip(said.calls, parsed.calls, strict=True):
        assert (call.arguments is None) == (other.error is not None)
        assert (
            call.arguments == json.loads(other.arguments)
            if call.arguments is not None
            else call.text == other.arguments
        )


@pytest.mark.parametrize("depth", [50, 98, 99, 100, 101, 102, 500, 900])
def test_deep_arguments_are_a_mistake_at_the_same_depth(depth):
    text = f'{OPEN}{{"name": "f", "arguments": {{"a": {"[" * depth}1{"]" * depth}}}}}{CLOSE}'
    (said,), (parsed,) = read_hermes(text).calls, HermesParser().parse(text).calls
    assert (said.arguments is None) == (parsed.error is not None) == (depth > 98)
