"""Parsing with a tokenizer's response schema: agreement with transformers, and hostile schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from chat_families import CHATML, schemas, tokenizer_for
from hypothesis import given
from hypothesis import strategies as st
from parser_contract import CONTENTS, Call
from parser_formats.hermes_format import FORMAT
from pydantic import JsonValue
from template_calls import calls_of

from agentrl.agent_loops.loading import LoopFactory
from agentrl.chat.base import ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers import check_parser, tool_parsers
from agentrl.chat.parsers.fit import make_parser
from agentrl.chat.parsers.foreign import process
from agentrl.chat.parsers.foreign.tokenizer import TokenizerParser
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

CALL: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "x-parser": "json",
            "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
            "required": ["name"],
        },
    },
}
SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "role": {"const": "assistant"},
        "content": {"type": "string", "x-regex": r"^(.*?)(?=\s*(?:<tool_call>|\Z))"},
        "thinking": {"type": "string", "x-regex": r"<plan>(.*?)</plan>"},
        "tool_calls": {
            "type": "array",
            "x-regex-iterator": r"<tool_call>\s*(\{.*?\})\s*</tool_call>",
            "items": {"type": "object", "properties": {"function": CALL["properties"]["function"]}},  # type: ignore[index, call-overload]  # JSON
        },
    },
}
WRITTEN = '<tool_call>\n{"name": "f", "arguments": {"q": "é"}}\n</tool_call>'


def chat(schema: Mapping[str, JsonValue] | None = SCHEMA) -> ChatFormat:
    tokenizer = tokenizer_for(CHATML)
    tokenizer.response_schema = schema
    return ChatFormat(tokenizer)


def parse(text: str, schema: Mapping[str, JsonValue] = SCHEMA) -> ParsedTurn:
    return TokenizerParser(schema).parse(text)


@pytest.mark.property
@given(calls=FORMAT.calls(), content=st.sampled_from(CONTENTS))
def test_calls_are_those_of_parse_response(calls: list[Call], content: str) -> None:
    text = FORMAT.write(content, calls)
    if any("tool_call>" in json.dumps(call) for call in calls):
        return
    tokenizer = tokenizer_for(CHATML)
    message = tokenizer.parse_response(text, SCHEMA)
    turn = parse(text)
    assert calls_of(turn) == calls
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]] == calls
    assert turn.content == message["content"].strip()


def test_thoughts() -> None:
    assert parse(f"<plan>Hm.</plan>{WRITTEN}").thinking == "Hm."
    assert parse(f"<think>\nHm. {WRITTEN}\n</think>\nSo.") == ParsedTurn("So.", thinking=f"Hm. {WRITTEN}")
    assert parse(f"<think>\nHm. {WRITTEN}") == ParsedTurn("", thinking=f"Hm. {WRITTEN}")


def test_a_call_without_arguments() -> None:
    assert calls_of(parse('<tool_call>{"name": "f"}</tool_call>')) == [("f", {})]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({**SCHEMA, "x-regex": "((a+)+)b"}, "took more than 0.2 seconds"),
        ({**SCHEMA, "x-regex-substitutions": [["a", "b" * 10**5], ["b{100}", "c" * 10**6]]}, "MemoryError"),
        ({**SCHEMA, "x-regex": "("}, "unterminated subpattern"),
        ({"type": "list"}, "Unsupported schema type list"),
        ({"type": "object", "properties": {"content": {"const": "x" * 2**24}}}, "its result is too long"),
        (
            {"type": "object", "properties": {"tool_calls": {"const": [{"name": "invented", "arguments": {}}]}}},
            "'invented' is not in the turn",
        ),
        (
            {"type": "object", "properties": {"tool_calls": {"const": [[]]}}},
            "The tool call is an array, not a JSON object.",
        ),
    ],
)
def test_hostile_schemas(schema: dict[str, JsonValue], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "took" in says:
        monkeypatch.setattr(process, "DEADLINE_S", 0.2)
    (call,) = parse("a" * 40, schema).calls
    assert call.name == ""
    assert says in str(call.error)
    assert "Write calls as the system prompt describes." in str(call.error)
    assert calls_of(parse(WRITTEN)) == [("f", {"q": "é"})]  # the next turn is read


@pytest.mark.parametrize("text", ['<tool_call>{"name": </tool_call>', '<tool_call>{"a": 1}</tool_call>'])
def test_malformed_calls(text: str) -> None:
    turn = parse(text.replace(": <", ": }<"))
    assert [call.name for call in turn.calls] == [""]
    assert "cannot be read: ValueError" in str(turn.calls[0].error)


def test_an_ended_reader_is_replaced() -> None:
    assert parse(WRITTEN).calls
    process._process("agentrl.chat.parsers.foreign.tokenizer_reader").kill()
    (call,) = parse(WRITTEN).calls
    assert "its reader ended" in str(call.error)
    assert calls_of(parse(WRITTEN)) == [("f", {"q": "é"})]


def test_the_schema_comes_from_the_tokenizer() -> None:
    assert tool_parsers.get("tokenizer")().parse(WRITTEN) == ParsedTurn(WRITTEN)
    assert calls_of(make_parser("tokenizer", chat()).parse(WRITTEN)) == [("f", {"q": "é"})]
    check_parser("tokenizer", chat(), schemas())
    settings = RunConfig.model_validate({"model": {"path": "none"}, "rollout": {"multi_turn": {"format": "tokenizer"}}})
    assert LoopFactory(chat(), settings).build(None).call_format == "tokenizer"
    with pytest.raises(ConfigError, match="needs a tokenizer with a response_schema; the model's has none"):
        LoopFactory(chat(None), settings)
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        check_parser("tokenizer", chat(None), schemas())
