"""Turns that take SGLang's detectors minutes to parse: each becomes a malformed call within seconds."""

from __future__ import annotations

import pytest

from agentrl.chat.parsers import tool_parsers
from agentrl.types.messages import FunctionSchema, ToolSchema

pytestmark = [pytest.mark.slow, pytest.mark.sglang]

PROPERTIES = {"n": {"type": "integer"}, "q": {"type": "string"}}
TOOL = ToolSchema(function=FunctionSchema(name="f", parameters={"type": "object", "properties": PROPERTIES}))
HERMES = '<tool_call>\n{"name": "f", "arguments": {"q": "%s"}}\n</tool_call>'


def test_parse_timeout_is_a_malformed_call_and_does_not_affect_the_next():
    text = "<dots_function_call>" + "<invoke name=a>" * 40_000 + "</dots_function_call>"
    turn = tool_parsers.get("sglang/dots")().for_tools([TOOL]).parse(text)
    assert ["took more than 3 seconds" in call.error for call in turn.calls] == [True]
    turn = tool_parsers.get("sglang/qwen25")().for_tools([TOOL]).parse(HERMES % ("a" * 2000))
    assert [(call.name, call.error) for call in turn.calls] == [("f", None)]
