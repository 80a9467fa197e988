"""The parser `tokenizer`: descriptions of turns, their failures, and where it is chosen."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from chat_families import CHATML, tokenizer_for
from parser_contract import schemas_of
from parser_formats.tokenizer_format import FORMAT
from response_specs import HERMES, KIND, XML, ParserHere, Spec
from template_calls import calls_of

from agentrl.agent_loops.loading import LoopFactory
from agentrl.chat.base import ParsedCall, ParsedTurn, TokenizerReader, parser_for
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers import check_parser, tool_parsers
from agentrl.chat.parsers.child import asking, forks
from agentrl.chat.parsers.child.tokenizer import TokenizerParser
from agentrl.chat.parsers.child.tokenizer_reader import read_turn
from agentrl.chat.parsers.choice import find_format
from agentrl.chat.parsers.names import make_parser
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

CALL = ParsedCall("f", '{"q": "1", "n": 1}')
WRITTEN = FORMAT.write("", [("f", {"q": "1", "n": 1})])
SCHEMAS = schemas_of([("f", {"q": "1", "n": 1})])
XML_CALL = (
    "<tool_call>\n<function=f>\n<parameter=q>1</parameter>\n<parameter=n>1</parameter>\n</function>\n</tool_call>"
)


def chat(spec: Spec | None, template: str = CHATML) -> ChatFormat:
    tokenizer = tokenizer_for(template)
    if spec is not None:
        setattr(tokenizer, KIND, spec)
    return ChatFormat(tokenizer)


def broken(pattern: str) -> Spec:
    """A description in which a pattern finds the content."""
    text: dict[str, Any] = json.loads(json.dumps(HERMES))
    if KIND == "response_schema":
        text["properties"]["content"]["x-regex"] = pattern
    else:
        text["fields"]["tool_calls"]["open_pattern"] = pattern
    return text


def test_turns_are_read_in_another_process() -> None:
    parser = parser_for(make_parser("tokenizer", chat(HERMES).tokenizer), SCHEMAS)
    assert isinstance(parser, TokenizerParser)
    assert parser.off_loop
    assert parser.parse(f"I look.\n{WRITTEN}\n{WRITTEN}") == ParsedTurn("I look.", (CALL, CALL))
    assert parser.parse("Only \ud800 text.") == ParsedTurn("Only \ud800 text.")


def test_a_reader_that_ends_is_replaced() -> None:
    parser = TokenizerParser(KIND, HERMES)
    parser.parse(WRITTEN)
    asking._process("agentrl.chat.parsers.child.tokenizer_reader").kill()
    (call,) = parser.parse(WRITTEN).calls
    assert str(call.error).startswith("The tool call cannot be read: its reader ended with status -9")
    assert parser.parse(WRITTEN).calls == (CALL,)


def test_calls_in_thoughts_are_not_made() -> None:
    parser = TokenizerParser(KIND, HERMES)
    assert parser.parse(f"<think>\nHm. {WRITTEN}") == ParsedTurn("", thinking=f"Hm. {WRITTEN}")
    assert parser.parse(f"<think>\nHm.\n</think>\n\nSo.{WRITTEN}") == ParsedTurn("So.", (CALL,), "Hm.")


def test_types_of_arguments_come_from_the_schema() -> None:
    parser = ParserHere(KIND, XML).for_tools(SCHEMAS)
    assert calls_of(parser.parse(XML_CALL)) == [("f", {"q": "1", "n": 1})]
    assert calls_of(ParserHere(KIND, XML).parse(XML_CALL)) == [("f", {"q": "1", "n": "1"})]
    assert calls_of(parser.parse("<tool_call>\n<function=f>\n</function>\n</tool_call>")) == [("f", {})]


def test_cut_calls_are_not_run() -> None:
    """A description of XML may read a part of a call, which lacks arguments."""
    for length in range(len(XML_CALL)):
        turn = ParserHere(KIND, XML).parse(XML_CALL[:length])
        assert all(call.error for call in turn.calls), length


def test_a_thought_of_the_description_is_added() -> None:
    class Fixed(ParserHere):
        def _read(self, text: str) -> dict[str, Any]:
            return {"message": {"content": " a ", "thinking": " b ", "tool_calls": None}}

    assert Fixed(KIND, HERMES).parse("<think>c</think>d") == ParsedTurn("a", (), "c\nb")


@pytest.mark.parametrize(
    ("calls", "name", "says"),
    [
        ("f(1)", "", "The tool call is a string, not a JSON object"),
        ([{"function": {"name": 3, "arguments": {}}}], "", 'has no "name"'),
        ([{"function": {"name": "f", "arguments": [1]}}], "f", "expected a JSON object, found an array"),
        ([{"name": "f", "arguments": "{"}], "f", '"arguments": Expecting property name'),
        ([{"name": "f", "arguments": {"q": float("nan")}}], "f", "NaN is not JSON"),
    ],
)
def test_what_a_description_returns_is_checked(calls: object, name: str, says: str) -> None:
    class Fixed(ParserHere):
        def _read(self, text: str) -> dict[str, Any]:
            return {"message": {"tool_calls": calls}}

    (call,) = Fixed(KIND, HERMES).for_tools(SCHEMAS).parse("x").calls
    assert call.name == name
    assert call.error is not None
    assert says in call.error
    assert call.error.endswith("The tools are: f.")


def test_unreadable_turns_are_malformed_calls() -> None:
    turn = ParserHere(KIND, HERMES).for_tools(SCHEMAS).parse("<tool_call>{</tool_call>")
    (call,) = turn.calls
    assert (call.name, call.arguments, turn.content) == ("", "<tool_call>{</tool_call>", "")
    assert str(call.error).startswith("The tool call cannot be read: ValueError: ")
    assert str(call.error).endswith("The tools are: f.")
    deep = f'{{"name": "f", "arguments": {{"q": {"[" * 300}{"]" * 300}}}}}'
    assert read_turn(KIND, HERMES, f"<tool_call>{deep}</tool_call>") == {"error": "it is nested too deeply"}


def test_slow_patterns_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit, the pattern would need years."""
    monkeypatch.setattr(forks, "DEADLINE_S", 0.2)
    slow = partial(read_turn, KIND, broken(r"(?:(a|aa)+)+$c"), "a" * 100 + "!")
    assert forks.in_fork(slow) == {"error": "reading it took more than 0.2 seconds"}


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda: "x" * forks.MAX_BYTES, "its parts have more than 16 MiB"),
        (lambda: [0] * forks.MEMORY, "reading it ended its process"),
        (lambda: 1 / 0, "reading it ended its process"),
    ],
)
def test_forks_are_limited(read: Any, error: str) -> None:
    assert forks.in_fork(read) == {"error": error}
    assert forks.in_fork(lambda: [1]) == {"found": [1]}


# ---- where the parser is used ---------------------------------------------------------------------------------------


def test_tokenizers_without_a_description_are_refused() -> None:
    assert isinstance(tool_parsers.get("tokenizer")(), TokenizerReader)
    with pytest.raises(ConfigError, match=r"'tokenizer' needs response_template or response_schema in the model's"):
        check_parser("tokenizer", chat(None), SCHEMAS)
    assert tool_parsers.get("tokenizer")().parse(WRITTEN) == ParsedTurn(WRITTEN)


def test_fits_a_template_that_writes_the_described_calls() -> None:
    check_parser("tokenizer", chat(HERMES), SCHEMAS)
    with pytest.raises(ConfigError, match="'tokenizer' does not read the chat template's calls"):
        check_parser("tokenizer", chat(XML), SCHEMAS)


OTHER = CHATML.replace("<tool_call>", "<call>").replace("</tool_call>", "</call>")


def test_automatic_choice() -> None:
    """The tokenizer's own description is chosen only if no other format fits."""
    assert find_format(chat(HERMES)).name == "hermes"
    own = json.loads(json.dumps(HERMES).replace("tool_call>", "call>"))
    assert find_format(chat(None, OTHER)).problem
    found = find_format(chat(own, OTHER))
    assert (found.name, found.problem) == ("tokenizer", "")


def test_agent_loops_use_the_tokenizer() -> None:
    settings = {"rollout": {"multi_turn": {"format": "tokenizer"}}, "model": {"path": "none"}}
    loop = LoopFactory(chat(HERMES), RunConfig.model_validate(settings)).build(None)
    assert loop.call_format == "tokenizer"
    assert loop.parser.parse(WRITTEN).calls == (CALL,)
