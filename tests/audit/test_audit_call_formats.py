"""The audit's own readers of tool calls against the parsers used in training, on valid, cut, broken and any texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parser_contract import CONTENTS, PIECES, THOUGHTS, Call, Format, fuzzed, schemas_of
from pydantic import JsonValue
from recorded_rollouts import audited, broken, reasons, saved_rollouts
from test_parser_contract import FORMATS

from agentrl.audit.calls import PLAIN_READERS, READERS, told_apart
from agentrl.chat.base import ThoughtReader, parser_for
from agentrl.chat.parsers import tool_parsers
from agentrl.chat.parsers.thinking import plain_turn
from agentrl.types.messages import FunctionSchema, ToolSchema

READ = {name: FORMATS[name] for name in sorted(READERS)}
formats = pytest.mark.parametrize("form", READ.values(), ids=READ)
SCHEMAS: Sequence[Sequence[Call]] = [
    [],
    [("f", {"a": 1, "q": {}, "b": [1]}), ("g", {"a": True})],
    [("f", {"a": 1.5, "q": None, "b": True})],
    [("f", {"a": "x", "q": True, "b": 1.5})],
]


def check_same(form: Format, text: str, calls: Sequence[Call] = ()) -> None:
    """Reader and parser return the same names, arguments, mistakes, content and thoughts, also of a cut turn."""
    check_same_types(form, text, schemas_of(calls))


def check_same_types(form: Format, text: str, schemas: Sequence[ToolSchema]) -> None:
    parser = parser_for(form.parser(), schemas)
    found = READERS[form.name](text, [schema.for_template() for schema in schemas])
    parsed = parser.parse(text)
    assert told_apart(found) == (parsed.content.strip(), parsed.thinking.strip())
    assert [call.name for call in found.calls] == [call.name for call in parsed.calls]
    for call, other in zip(found.calls, parsed.calls, strict=True):
        assert (call.arguments is None) == (other.error is not None)
        written = json.loads(other.arguments) if other.error is None else other.arguments
        found_arguments = call.text if call.arguments is None else call.arguments
        assert (found_arguments, repr(found_arguments)) == (written, repr(written))  # 1 is not True, nor 1.0
    if form.name in PLAIN_READERS:
        plain = plain_turn(parser, text)
        assert told_apart(PLAIN_READERS[form.name](text)) == (plain.content.strip(), plain.thinking.strip())


TOOLS = [("f", {"a": 1, "q": {}, "b": [1]})]
EXAMPLES: Sequence[tuple[str, str, str, Sequence[tuple[str, object]]]] = [  # format, text, content, (name, arguments)
    ("llama3_json", 'x<|python_tag|>{"name": "f", "arguments": {"a": 1}}; y', "x", [("f", {"a": 1}), ("", None)]),
    ("llama3_json", '{"type": "function", "name": "f", "parameters": "{}"} x', "x", [("f", {})]),
    ("llama3_json", '{"answer": 1}', '{"answer": 1}', []),
    ("llama3_json", "<|python_tag|>s.call(q='\\ud83d\\ude00\\n')", "", [("s", {"q": "\U0001f600\n"})]),
    (
        "qwen3_coder",
        "x\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>[True, 'c']</parameter></function>",
        "x",
        [("f", {"a": 1, "b": [True, "c"]})],
    ),
    ("qwen3_coder", "<tool_call><function=f><parameter=a>1.0</parameter></function>", "", [("f", {"a": "1.0"})]),
    ("qwen3_coder", "<tool_call><function=f><parameter=a>1</function></tool_call> x", "x", [("f", None)]),
    (
        "glm",
        "<tool_call>f<arg_key>q</arg_key><arg_value>{'c': None}</arg_value></tool_call>",
        "",
        [("f", {"q": {"c": None}})],
    ),
    ("gpt_oss", "<|channel|>analysis to=functions.f<|message|>{}", "", [("f", {})]),
    ("gpt_oss", "<|channel|>commentary to=functions.f<|message|>{}<|start|>assistant", "", [("", None)]),
    ("gpt_oss", "to=f<|channel|>commentary to=g<|message|>{}", "", [("", None)]),
    ("gpt_oss", f"{'a' * 210} to={'a' * 210}<|channel|>commentary<|message|>{{}}", "", [("", None)]),
    ("gpt_oss", f"to={'a' * 210}<|message|>{{}}", "", [("", None)]),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]12[ARGS]{"a": 1}', "", [("f", {"a": 1})]),
    ("pythonic", "[f(a=1), g(", "", [("f", {"a": 1}), ("g", None)]),
    ("kimi_k2", "<|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{}<|tool_call_end|>", "", [("f", {})]),
    ("gemma4", '<|tool_call>call:f{a:<|"|>{b:1}<|"|>,c:[null]}<tool_call|>', "", [("f", {"a": "{b:1}", "c": [None]})]),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), EXAMPLES)
def test_calls_are_read_as_described(name: str, text: str, content: str, calls: Sequence[tuple[str, object]]) -> None:
    found = READERS[name](text, [schema.for_template() for schema in schemas_of(TOOLS)])
    assert found.content == content
    assert [(call.name, call.arguments) for call in found.calls] == list(calls)
    check_same(FORMATS[name], text, TOOLS)


def test_every_builtin_format_has_a_reader():
    assert sorted(READERS) == [name for name in tool_parsers.builtins() if name != "tokenizer"]


def test_formats_with_own_thought_marks_are_known():
    assert set(PLAIN_READERS) == {name for name, form in READ.items() if isinstance(form.parser(), ThoughtReader)}


@pytest.mark.slow
@pytest.mark.one_in(3)
@formats
@given(data=st.data())
def test_valid_and_cut_turns_are_read_as_in_training(form: Format, data: st.DataObject) -> None:
    calls, thoughts = data.draw(form.calls()), data.draw(st.sampled_from(["", *THOUGHTS]))
    text = form.write(data.draw(st.sampled_from(CONTENTS)), calls)
    text = (form.write_thoughts(thoughts) if thoughts else "") + text
    check_same(form, text, calls)
    check_same(form, text[: data.draw(st.integers(0, len(text)))], calls)


@pytest.mark.slow
@pytest.mark.one_in(3)
@formats
@settings(max_examples=4 * settings.default.max_examples)
@given(data=st.data())
def test_any_pieces_are_read_as_in_training(form: Format, data: st.DataObject) -> None:
    pieces = st.sampled_from([*form.marks * 4, *PIECES]) | st.text(max_size=3)
    check_same(form, "".join(data.draw(st.lists(pieces, max_size=14))), data.draw(st.sampled_from(SCHEMAS)))


SUBSCHEMAS = [
    *({"type": ["null", "integer"]}, {"anyOf": [{"type": "null"}, {"type": "number"}]}, {"allOf": [{"items": {}}]}),
    *({"$ref": "#/$defs/one"}, {"$ref": "#/$defs/list/1"}, {"$ref": "#/$defs/self"}, {"$ref": "other"}, {"$ref": "#a"}),
    *({"enum": [True, 1]}, {"enum": ["a", None]}, {"const": {}}, {"properties": {}}, {"type": 3}, {"type": "other"}, 4),
]
DEFINITIONS = {
    "one": {"oneOf": [{"const": 1.5}, {"$ref": "#/$defs/self"}]},
    "list": [{}, {"type": "array"}],
    "self": {"anyOf": [{"$ref": "#/$defs/self"}, {"type": "boolean"}]},
}


@pytest.mark.parametrize("subschema", SUBSCHEMAS, ids=json.dumps)
@pytest.mark.parametrize("name", [name for name, form in READ.items() if form.typed])
def test_types_are_read_from_schemas_as_in_training(name: str, subschema: JsonValue) -> None:
    parameters = {"type": "object", "properties": {"a": subschema}, "$defs": DEFINITIONS}
    schema = ToolSchema(function=FunctionSchema(name="f", parameters=parameters))
    for value in ("1", "1.0", "None", "null", " True ", "true", "[1, 'a']", "{}", "{'a': None}", "text", "", '"a"'):
        check_same_types(FORMATS[name], FORMATS[name].write("", [("f", {"a": value})]), [schema])


@formats
@pytest.mark.one_in(6)
@pytest.mark.parametrize("seed", [2, pytest.param(range(3, 40), marks=pytest.mark.slow)])
def test_broken_turns_are_read_as_in_training(form: Format, seed: int | range) -> None:
    for number in [seed] if isinstance(seed, int) else seed:
        for text in fuzzed(form, 1_000, seed=number):
            check_same(form, text, SCHEMAS[len(text) % len(SCHEMAS)])


def calling(form: Format) -> Callable[[str], str]:
    """A model that thinks, calls tools, writes a call that is cut, and answers."""
    thoughts = "" if form.name == "react" else form.write_thoughts("Shall I?")

    def reply(context: str) -> str:
        turns = context.count("<|im_start|>assistant")
        calls = form.write("I add.", [("add", {"a": turns, "b": 2})])
        cut, failed = thoughts + calls[:-9], form.write("", [("fail", {"kind": "tool"})])
        return {1: thoughts + calls, 2: cut, 3: failed}.get(turns, f"{thoughts}It is 3")

    return reply


OPTIONS = {
    "tools": {},
    "no tools": {"row": {"extra_info": {"tool_selection": []}}},
    "short turns": {"multi_turn": {"max_turn_tokens": 40}},
    "one call": {"multi_turn": {"max_tool_calls": 1}},
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@formats
def test_a_rollout_passes_the_audit(form: Format, options: Mapping[str, Mapping[str, object]], tmp_path: Path) -> None:
    multi_turn = {**options.get("multi_turn", {}), "format": form.name}
    loop = "react_agent" if form.name == "react" else "tool_agent"
    ledger = audited(saved_rollouts(tmp_path, loop, calling(form), multi_turn=multi_turn, row=options.get("row")))
    assert broken(ledger) == {}
    assert not {"calls", "answers", "outcomes"} & reasons(ledger).keys()
    assert all(ledger.findings[name].status == "passed" for name in ("calls", "answers", "outcomes"))
