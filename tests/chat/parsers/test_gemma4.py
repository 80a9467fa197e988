"""The format of Gemma 4: the public templates, ways to write values, and broken calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parser_contract import Call
from public_templates import public_tokenizer
from pydantic import JsonValue
from template_calls import calls_of, needs_public_templates, written_turn

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers.choice import find_format
from agentrl.chat.parsers.marked.gemma4 import CLOSE, OPEN, QUOTE, Gemma4Parser

TEMPLATES = pytest.mark.parametrize(
    "name", ["gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5", "diffusion_gemma"]
)
WEATHER = ParsedCall("weather", '{"city": "Paris", "days": 2}')
WRITTEN = f"{OPEN}call:weather{{city:{QUOTE}Paris{QUOTE},days:2}}{CLOSE}"
ANY_TEXT = st.text(st.characters(codec="utf-8")).filter(lambda text: QUOTE not in text)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.sampled_from(["a", "b_c", "Größe"]), child),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["q", "count", "the text"]), VALUES)


def parse(text: str) -> ParsedTurn:
    return Gemma4Parser().parse(text)


@pytest.mark.slow
@needs_public_templates
@TEMPLATES
@given(
    calls=st.lists(st.tuples(st.sampled_from(["f", "get-x"]), ARGUMENTS), min_size=1, max_size=3),
    content=st.sampled_from(["", "Größe: 日本 🙂\n{x}"]),
    thoughts=st.sampled_from(["", "Shall I?\nYes."]),
)
@pytest.mark.one_in(3)
def test_calls_of_the_public_templates(name: str, calls: list[Call], content: str, thoughts: str) -> None:
    """The templates write the content after the calls."""
    tokenizer = public_tokenizer(name)
    fields = {"content": content, "reasoning_content": thoughts}
    end = "<turn|>" if name == "gemma4_v2" else "<|tool_response>"
    turn = parse(written_turn(tokenizer, calls, "<|turn>model\n", end, **fields))
    assert (calls_of(turn), turn.content) == (calls, content)
    assert turn.thinking in ("", thoughts)


@needs_public_templates
@TEMPLATES
def test_automatic_choice(name: str) -> None:
    found = find_format(ChatFormat(public_tokenizer(name)))
    assert (found.name, found.problem) == ("gemma4", "")


def test_ways_to_write_a_call() -> None:
    for text in (WRITTEN, f"{WRITTEN}\n", WRITTEN.replace(",", ", ").replace(":2", ": 2 ")):
        assert parse(text) == ParsedTurn("", (WEATHER,))
        for end in ("<channel|>", "\n<channel|>\n"):
            assert parse(f"<|channel>thought\nHm.{end}I look.{text}") == ParsedTurn("I look.", (WEATHER,), "Hm.")
    assert parse(f"{WRITTEN}{WRITTEN}Done.") == ParsedTurn("Done.", (WEATHER, WEATHER))
    assert parse(f"<|channel>thought\nHm. {WRITTEN}") == ParsedTurn("", thinking=f"Hm. {WRITTEN}")


def test_thoughts_between_calls() -> None:
    turn = parse(f"<|channel>thought\nA<channel|>{WRITTEN}<|channel>thought\n{WRITTEN}<channel|>So.")
    assert turn == ParsedTurn("So.", (WEATHER,), f"A\n{WRITTEN}")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("", {}),
        ("a:null", {"a": None}),
        ("a:None,b:True,c:false", {"a": None, "b": True, "c": False}),
        ("a:[],b:{},c:[{d:-1.5e-05},[1]]", {"a": [], "b": {}, "c": [{"d": -1.5e-05}, [1]]}),
        (f"a:{QUOTE}{QUOTE}", {"a": ""}),
        (f"a:{QUOTE}{{b:1}},\\n'\"{CLOSE}{QUOTE}", {"a": "{b:1},\\n'\"" + CLOSE}),
        (f"a:{{{QUOTE}b:c{QUOTE}:{QUOTE}\n{QUOTE}}}", {"a": {"b:c": "\n"}}),
    ],
)
def test_values(written: str, value: JsonValue) -> None:
    assert calls_of(parse(f"{OPEN}call:f{{{written}}}{CLOSE}")) == [("f", value)]


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (WRITTEN.removesuffix(CLOSE), "weather", f"not closed: {CLOSE} is missing"),
        (WRITTEN.removesuffix(f"{QUOTE},days:2}}{CLOSE}"), "weather", "not closed"),
        (WRITTEN.replace(f"{QUOTE},", ","), "weather", "not closed"),
        (WRITTEN.replace("call:", ""), "", "does not begin with call:name{, but with 'weather{city:"),
        (OPEN, "", "does not begin with call:name{, but with ''"),
        (WRITTEN.replace(QUOTE, ""), "weather", "'Paris' is not a literal"),
        (WRITTEN.replace(QUOTE, '"'), "weather", f"'\"Paris\",days:2}}' outside of a text in {QUOTE}"),
        (WRITTEN.replace("2}", "2}}"), "weather", "'}' follows the arguments"),
        (WRITTEN.replace("2}", "2"), "weather", "expected ',' or '}' where it ends"),
        (WRITTEN.replace("2}", "1e999}"), "weather", "too large"),
        (WRITTEN.replace("2}", f"{'[' * 300}}}"), "weather", "nested too deeply"),
        (WRITTEN.replace("2}", f"{'9' * 5000}}}"), "weather", "too long"),
        (WRITTEN.replace("weather", "\ud800"), "", "not text"),
    ],
)
def test_malformed_calls(text: str, name: str, says: str) -> None:
    (call,) = parse(text).calls
    assert call.name == name
    assert call.error is not None
    assert says in call.error
    assert f". Write {OPEN}call:name{{argument:" in call.error
    assert call.arguments in text


def test_a_call_after_a_malformed_call() -> None:
    turn = parse(f"{OPEN}call:weather{{city:{QUOTE}{WRITTEN} So.")
    assert [call.error is None for call in turn.calls] == [False, True]
    assert (turn.calls[1], turn.content) == (WEATHER, "So.")


def test_removed_thoughts_do_not_join_marks_to_a_call() -> None:
    turn = Gemma4Parser().parse("<|tool_<|channel>thought\nx<channel|>call>call:f{a:1}<tool_call|>")
    assert (turn.calls, turn.thinking) == ((), "x")
