"""Parsing as a tokenizer describes turns: agreement with transformers, hostile descriptions, and where it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from chat_families import CHATML, tokenizer_for
from hypothesis import given
from hypothesis import strategies as st
from parser_contract import CONTENTS, Call, schemas_of
from parser_formats.tokenizer_format import FORMAT
from response_specs import HERMES, KIND, XML, ParserHere, Spec
from template_calls import calls_of

from agentrl.agent_loops.loading import LoopFactory
from agentrl.chat.base import ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers import check_parser, tool_parsers
from agentrl.chat.parsers.choice import find_format
from agentrl.chat.parsers.fit import make_parser
from agentrl.chat.parsers.foreign import process
from agentrl.chat.parsers.foreign.tokenizer import TokenizerParser
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

WRITTEN = '<tool_call>\n{"name": "f", "arguments": {"q": "é"}}\n</tool_call>'
XML_CALL = (
    "<tool_call>\n<function=f>\n<parameter=q>1</parameter>\n<parameter=n>1</parameter>\n</function>\n</tool_call>"
)
SCHEMAS = schemas_of([("f", {"q": "1", "n": 1})])


def chat(spec: Spec | None = HERMES, template: str = CHATML) -> ChatFormat:
    tokenizer = tokenizer_for(template)
    setattr(tokenizer, KIND, spec)
    return ChatFormat(tokenizer)


def parse(text: str, spec: Spec = HERMES) -> ParsedTurn:
    return TokenizerParser(KIND, spec).parse(text)


@given(calls=FORMAT.calls(), content=st.sampled_from(CONTENTS))
def test_calls_are_those_of_parse_response(calls: list[Call], content: str) -> None:
    text = FORMAT.write(content, calls)
    tokenizer = chat().tokenizer
    message = tokenizer.parse_response(text, **({"prefix": ""} if KIND == "response_template" else {}))
    turn = ParserHere(KIND, HERMES).parse(text)
    assert calls_of(turn) == calls
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]] == calls
    assert turn.content == message.get("content", "").strip()


@pytest.mark.slow
def test_turns_are_read_in_another_process() -> None:
    turn = parse(f"I look.\n{WRITTEN}\n{WRITTEN}")
    assert calls_of(turn) == [("f", {"q": "é"})] * 2
    assert turn.content == "I look."
    assert parse("Only \ud800 text.") == ParsedTurn("Only \ud800 text.")


def test_thoughts() -> None:
    assert parse(f"<plan>Hm.</plan>{WRITTEN}").thinking == "Hm."
    assert parse(f"<think>\nHm. {WRITTEN}\n</think>\nSo.") == ParsedTurn("So.", thinking=f"Hm. {WRITTEN}")
    assert parse(f"<think>\nHm. {WRITTEN}") == ParsedTurn("", thinking=f"Hm. {WRITTEN}")
    assert calls_of(parse(WRITTEN.replace("é", "</think>"))) == [("f", {"q": "</think>"})]


def test_types_of_arguments_come_from_the_schema() -> None:
    parser = ParserHere(KIND, XML).for_tools(SCHEMAS)
    assert calls_of(parser.parse(XML_CALL)) == [("f", {"q": "1", "n": 1})]
    assert calls_of(ParserHere(KIND, XML).parse(XML_CALL)) == [("f", {"q": "1", "n": "1"})]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ('<tool_call>{"name": "f"}</tool_call>', HERMES),
        ("<tool_call>\n<function=f>\n</function>\n</tool_call>", XML),
    ],
)
def test_a_call_without_arguments(text: str, spec: Spec) -> None:
    assert calls_of(ParserHere(KIND, spec).parse(text)) == [("f", {})]


def test_cut_calls_are_not_run() -> None:
    """A description of XML may read a part of a call, which lacks arguments."""
    for length in range(len(XML_CALL)):
        turn = ParserHere(KIND, XML).parse(XML_CALL[:length])
        assert all(call.error for call in turn.calls), length


def nested(depth: int) -> str:
    return f'<tool_call>{{"name": "f", "arguments": {{"q": {"[" * depth}{"]" * depth}}}}}</tool_call>'


@pytest.mark.parametrize(
    "text", ["<tool_call>{</tool_call>", '<tool_call>{"name": }</tool_call>', nested(150), nested(100_000)]
)
def test_malformed_calls(text: str) -> None:
    (call,) = parse(text).calls
    assert (call.name, call.arguments) == ("", text)
    assert "The tool call cannot be read: " in str(call.error)
    assert "Write calls as the system prompt describes." in str(call.error)


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ([{"function": {"name": "invented", "arguments": {}}}], "'invented' is not in the turn"),
        ([[]], "The tool call is an array, not a JSON object."),
        ("f(1)", "The tool call is a string, not a JSON object."),
        ([{"function": {"name": 3, "arguments": {}}}], 'no "name"'),
        ([{"name": "f", "arguments": [1]}], "expected a JSON object, found an array"),
        ([{"name": "f", "arguments": {"q": float("inf")}}], "a number in it is too large"),
    ],
)
def test_what_transformers_returns_is_checked(calls: object, says: str) -> None:
    class Returned(TokenizerParser):
        def _read(self, text: str) -> Mapping[str, Any]:
            return {"result": {"tool_calls": calls}, "cut": False}

    (call,) = Returned(KIND, HERMES).parse("f").calls
    assert says in str(call.error)
    assert str(call.error).endswith("Write calls as the system prompt describes.")


def with_pattern(pattern: str) -> Spec:
    """A description with another pattern."""
    spec: dict[str, Any] = json.loads(json.dumps(HERMES))
    if KIND == "response_template":
        spec["fields"]["tool_calls"]["open_pattern"] = pattern
    else:
        spec["x-regex"] = pattern
    return spec


def with_constant(value: object) -> Spec:
    """A description that adds a value to each turn."""
    if KIND == "response_template":
        return {**HERMES, "defaults": {"added": value}}
    return {"type": "object", "properties": {"added": {"const": value}}}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (with_pattern("(?:(a|aa)+)+$b"), "took more than 0.2 seconds"),
        (with_pattern("("), "rror: "),
        (with_constant("x" * 2**24), "its result is too long"),
        ({"type": "list"}, "Error: "),
    ],
)
def test_hostile_descriptions(spec: Spec, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "took" in says:
        monkeypatch.setattr(process, "DEADLINE_S", 0.2)
    (call,) = parse("a" * 200 + "!", spec).calls
    assert call.name == ""
    assert says in str(call.error)
    monkeypatch.undo()
    assert calls_of(parse(WRITTEN)) == [("f", {"q": "é"})]  # the next turn is read


@pytest.mark.slow
def test_an_ended_reader_is_replaced() -> None:
    assert parse(WRITTEN).calls
    process._process("agentrl.chat.parsers.foreign.tokenizer_reader").kill()
    (call,) = parse(WRITTEN).calls
    assert "its reader ended" in str(call.error)
    assert calls_of(parse(WRITTEN)) == [("f", {"q": "é"})]


# ---- where the parser is used ---------------------------------------------------------------------------------------


def test_the_description_comes_from_the_tokenizer() -> None:
    assert tool_parsers.get("tokenizer")().parse(WRITTEN) == ParsedTurn(WRITTEN)
    assert calls_of(make_parser("tokenizer", chat()).parse(WRITTEN)) == [("f", {"q": "é"})]
    check_parser("tokenizer", chat(), SCHEMAS)
    settings = RunConfig.model_validate({"model": {"path": "none"}, "rollout": {"multi_turn": {"format": "tokenizer"}}})
    assert LoopFactory(chat(), settings).build(None).call_format == "tokenizer"
    with pytest.raises(ConfigError, match="needs a tokenizer with response_template or response_schema for"):
        LoopFactory(chat(None), settings)
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        check_parser("tokenizer", chat(None), SCHEMAS)
    with pytest.raises(ConfigError, match="'tokenizer' does not read the chat template's calls"):
        check_parser("tokenizer", chat(XML), SCHEMAS)


def test_automatic_choice() -> None:
    """The tokenizer's description is used only if no other format fits."""
    assert find_format(chat()).name == "hermes"
    template = CHATML.replace("tool_call>", "call>")
    assert find_format(chat(None, template)).problem
    found = find_format(chat(json.loads(json.dumps(HERMES).replace("tool_call>", "call>")), template))
    assert (found.name, found.problem) == ("tokenizer", "")


@pytest.mark.parametrize("text", ["Hi there.", 'Hi. <tool_call>{"name": "f", "argu'])
def test_text_in_which_the_description_finds_nothing_is_content(text: str) -> None:
    turn = TokenizerParser(KIND, HERMES)._turn({}, text, "", cut=False)
    assert turn == ParsedTurn(text)
