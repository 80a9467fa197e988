from __future__ import annotations

import json
import re
import sys
import time

import pytest
from chat_families import CHATML, family_tokenizer, schemas, tokenizer_for
from hypothesis import given
from hypothesis import strategies as st
from parser_contract import values

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers import check_parser, sglang, tool_parsers
from agentrl.errors import ConfigError, UnknownNameError

TRAILING_COMMA = 36 if sys.version_info < (3, 13) else 35
"""The column that Python's parser names: what follows the comma, since 3.13 the comma."""
HERMES, REACT = tool_parsers.get("hermes")(), tool_parsers.get("react")()
arguments = st.dictionaries(st.text(), values, max_size=4)


def hermes_call(name: object, given_arguments: object) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": given_arguments}) + "\n</tool_call>"


def only(turn: ParsedTurn) -> ParsedCall:
    (call,) = turn.calls
    return call


# ---- hermes ---------------------------------------------------------------------------------------------------------


def test_hermes_reads_calls_and_content() -> None:
    text = f"Let me look.\n{hermes_call('search', {'q': 'é'})}\nand\n{hermes_call('add', {'a': 1, 'b': [2]})}\nDone."
    turn = HERMES.parse(text)
    assert [(call.name, call.arguments, call.error) for call in turn.calls] == [
        ("search", '{"q": "é"}', None),
        ("add", '{"a": 1, "b": [2]}', None),
    ]
    assert turn.content == "Let me look.\n\nand\n\nDone."
    assert HERMES.parse("nothing to call") == ParsedTurn("nothing to call")
    assert HERMES.stop == ()


@given(arguments)
def test_hermes_reads_back_any_arguments(value: dict[str, object]) -> None:
    """Any argument except one that contains the opening tag: the tag always begins the next call."""
    text = hermes_call("f", value)
    if text.count("<tool_call>") == 1:
        call = only(HERMES.parse(text))
        assert (call.name, call.error) == ("f", None)
        assert json.loads(call.arguments) == value


def test_hermes_closing_tag_inside_an_argument() -> None:
    call = only(HERMES.parse(hermes_call("write", {"text": "a </tool_call> b </think>"})))
    assert json.loads(call.arguments) == {"text": "a </tool_call> b </think>"}


@pytest.mark.parametrize(
    ("body", "name", "says"),
    [
        ('{"name": "f", "arguments": {"a": 1,}}', "", f"not valid JSON: .* at line 1 column {TRAILING_COMMA}\\b"),
        ('{"name": "f",\n "arguments": {"a" 1}}', "", "Expecting ':' delimiter at line 2 column 20, near '1}}'"),
        ("", "", "not valid JSON"),
        ("search(q)", "", "Expecting value at line 1 column 1, near 'search"),
        ('{"name": "f", "arguments": {"a": ', "", "where it ends"),
        ('{"name": "f", "arguments": {}} {"name": "g"}', "f", "more than one JSON object"),
        ('{"name": "f", "arguments": {}}}', "f", "more than one JSON object in the tool call: '}' follows"),
        ("[1]", "", "is an array, not a JSON object"),
        ('"f"', "", "is a string, not a JSON object"),
        ('{"arguments": {}}', "", 'has no "name"'),
        ('{"name": 3, "arguments": {}}', "", 'has no "name"'),
        ('{"name": "\\ud800", "arguments": {}}', "", 'has no "name"'),
        ('{"name": "f"}', "f", 'has no "arguments"'),
        ('{"name": "f", "arguments": [1]}', "f", '"arguments": expected a JSON object, found an array'),
        ('{"name": "f", "arguments": null}', "f", '"arguments": expected a JSON object, found null'),
        ('{"name": "f", "arguments": 1.5}', "f", '"arguments": expected a JSON object, found a number'),
        ('{"name": "f", "arguments": true}', "f", '"arguments": expected a JSON object, found a boolean'),
        ('{"name": "f", "arguments": "[1]"}', "f", '"arguments": expected a JSON object, found an array'),
        ('{"name": "f", "arguments": "{\\"a\\": }"}', "f", '"arguments": Expecting value at line 1 column 7'),
        ('{"name": "f", "arguments": "{} x"}', "f", "\"arguments\": there is more after the JSON: 'x'"),
        ('{"name": "f", "arguments": {"a": NaN}}', "", "NaN is not JSON"),
        ('{"name": "f", "arguments": {"a": 1e999}}', "f", "too large"),
        ('{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}", "", "too long"),
        ('{"name": "f", "arguments": ' + '{"a":' * 100_000, "", "nested too deeply"),
        ('{"name": "f", "arguments": ' + '{"a":' * 900 + "1" + "}" * 901, "", "nested too deeply"),
    ],
)
def test_hermes_errors_name_problem_and_position(body: str, name: str, says: str) -> None:
    call = only(HERMES.parse(f"x<tool_call>{body}</tool_call>y"))
    assert call.name == name
    assert call.error is not None
    assert re.search(says, call.error)
    assert call.error.endswith("</tool_call>")  # the error shows the correct form
    assert call.arguments == body.strip()


def test_hermes_arguments_given_as_a_string() -> None:
    assert only(HERMES.parse(hermes_call("f", '{"a": 1}'))).arguments == '{"a": 1}'


def test_hermes_unclosed_calls() -> None:
    one = only(HERMES.parse('<tool_call>{"name": "f", "arguments": {}}'))
    assert (one.name, one.error) == ("f", one.error)
    assert "</tool_call> is missing" in str(one.error)
    first, second = HERMES.parse('<tool_call>{"name": "f", <tool_call>' + hermes_call("g", {})[11:]).calls
    assert (first.name, second.name, second.error) == ("", "g", None)
    assert "not valid JSON" in str(first.error)


def test_hermes_keeps_text_that_can_be_stored() -> None:
    call = only(HERMES.parse(hermes_call("f", {"a": "\ud800 é"})))
    assert call.arguments == '{"a": "\\ud800 \\u00e9"}'
    call.arguments.encode()


def test_hermes_calls_in_thoughts_are_not_made() -> None:
    call, other = hermes_call("f", {}), hermes_call("g", {})
    expected = ParsedTurn("", (ParsedCall("g", "{}"),), f"maybe {call}")
    assert HERMES.parse(f"<think>maybe {call}</think>\n{other}") == expected
    assert HERMES.parse(f"maybe {call}</think>{other}") == expected
    assert HERMES.parse(f"write <tool_call> tags</think>{other}").calls == (ParsedCall("g", "{}"),)
    assert HERMES.parse(f'<tool_call>{{"name": 1}} hm</think>{other}').calls == (ParsedCall("g", "{}"),)
    assert HERMES.parse(f"<think>{call}</think>{other}</think>").calls == (ParsedCall("g", "{}"),)
    assert HERMES.parse(f"<think>never ends {call}") == ParsedTurn("", (), f"never ends {call}")
    both = HERMES.parse(f"<think>a</think>{other}<think>{call}</think>b")
    assert both == ParsedTurn("b", (ParsedCall("g", "{}"),), f"a\n{call}")


# ---- react ----------------------------------------------------------------------------------------------------------


def test_react_reads_an_action() -> None:
    turn = REACT.parse('Thought: I should look.\nAction: search\nAction Input: {"q": "x"}\nObservation:')
    assert turn == ParsedTurn("Thought: I should look.", (ParsedCall("search", '{"q": "x"}'),))
    assert REACT.stop == ("Observation:",)


@pytest.mark.parametrize(
    "text",
    [
        '**Action:** search\n**Action Input:** {"q": "x"}',
        '**Action**: `search`\n**Action Input**: `{"q": "x"}`',
        '### Action: search\n### Action Input:\n```json\n{"q": "x"}\n```',
        '- Action: "search"\n- Action Input: {\n  "q": "x"\n}\n',
        'action: search\r\naction input: {"q": "x"}\r\n',
        'Action:\nsearch\nAction Input:\n{"q": "x"}\nObservation: it says Action: other\nAction Input: {}',
        'Action: search\nAction Input: {"q": "x"}\nFinal Answer: 3',
    ],
)
def test_react_ignores_markdown_around_keywords(text: str) -> None:
    assert REACT.parse(text).calls == (ParsedCall("search", '{"q": "x"}'),)


def test_react_reads_final_answers_and_plain_text() -> None:
    final = "Thought: I know.\nFinal Answer: 42\nAction: search\nAction Input: {}"
    assert REACT.parse(final) == ParsedTurn(final)
    assert REACT.parse("no labels at all") == ParsedTurn("no labels at all")
    assert REACT.parse("The Action: is unclear, my Thought: too") == ParsedTurn(
        "The Action: is unclear, my Thought: too"
    )
    assert REACT.parse("Action Input: {}") == ParsedTurn("Action Input: {}")
    assert REACT.parse("Observation: invented") == ParsedTurn("")


def test_react_keeps_a_thought_between_an_action_and_nothing() -> None:
    assert REACT.parse("Action: f\nThought: hm").content == "Thought: hm"


def test_react_several_actions_before_an_observation() -> None:
    text = "Action: f\nAction Input: {}\nThought: and\nAction: g\nAction Input: {}"
    assert REACT.parse(text) == ParsedTurn("Thought: and", (ParsedCall("f", "{}"), ParsedCall("g", "{}")))


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("Action: search\nAction Input: Paris", "search", "must be a JSON object: Expecting value at line 1 column 1"),
        (
            'Action: search\nAction Input: "Paris"',
            "search",
            "must be a JSON object: expected a JSON object, found a string",
        ),
        ("Action: search\nAction Input:", "search", "no Action Input:; write {}"),
        ("Action: search", "search", "no Action Input:"),
        ("Action: search\nThought: hm", "search", "no Action Input:"),
        ("Action:\nAction Input: {}", "", "names no tool"),
        ("Action: \ud800\nAction Input: {}", "", "names no tool"),
    ],
)
def test_react_errors_name_the_problem(text: str, name: str, says: str) -> None:
    call = only(REACT.parse(text))
    assert call.name == name
    assert says in str(call.error)
    assert "\nAction Input: {" in str(call.error)


# ---- both -----------------------------------------------------------------------------------------------------------

_TAGS = ["<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "f", "arguments": {']
_LABELS = ["Action: f", "\nAction Input: ", "\nObservation:", "\nFinal Answer:", "**", "```json", "\n", "-"]
_fragments = st.sampled_from([*_TAGS, *_LABELS, '"', "\\", "}", "]", "[" * 50, "1e999", "NaN", "\ud800"])


@pytest.mark.parametrize("parser", [HERMES, REACT], ids=["hermes", "react"])
@given(text=st.one_of(st.text(), st.lists(st.one_of(_fragments, st.text(max_size=5)), max_size=30).map("".join)))
def test_parsers_never_raise(parser: object, text: str) -> None:
    turn = parser.parse(text)  # type: ignore[attr-defined]
    for call in turn.calls:
        assert call.name.isascii() or call.name.encode()  # the name can be encoded, so it can be stored
        if call.error is None:
            assert call.name
            assert isinstance(json.loads(call.arguments), dict)
    assert parser.parse(text) == turn  # type: ignore[attr-defined]


HOSTILE = [
    *("<tool_call>", "<tool_call>{", '<tool_call>{"a":"', '<tool_call>"\\"', "<tool_call></tool_call>", "</tool_call>"),
    *(
        "<think>",
        "</think>",
        "<think></think>",
        "<tool_call><think>",
        '{"a":',
        "[",
        "\\",
        '"',
        '<tool_call>["",',
        "\n" * 5,
    ),
    *("Action: f\n", "Action Input: {\n", "Action: f\nAction Input: {}\n", "*", "* \n", "**Action", "Thought:\n", "`"),
    *("<tool_call>" + " " * 50, "Action" + " " * 30, "<tool_call>" + '{"a":' * 50),
]


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("parser", [HERMES, REACT], ids=["hermes", "react"])
def test_hostile_text_takes_linear_time(parser: object) -> None:
    """Linear parsing takes at most tenths of a second; quadratic parsing of 100,000 characters takes minutes."""
    for pattern in HOSTILE:
        text = pattern * (100_000 // len(pattern))
        for whole in (text, f"<tool_call>{text}", f"Action: f\nAction Input: {text}"):
            begin = time.process_time()
            parser.parse(whole)  # type: ignore[attr-defined]
            assert time.process_time() - begin < 2, pattern


def test_unknown_parser_name_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'hermes'"):
        tool_parsers.get("hermess")


# ---- parser and template --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chatml", "thinking"])
def test_hermes_fits_templates_that_write_it(name: str) -> None:
    check_parser("hermes", ChatFormat(family_tokenizer(name)), schemas())


def test_a_parser_that_does_not_fit_is_refused_with_one_that_does() -> None:
    with pytest.raises(ConfigError, match=r"'react' does not read .*: use 'hermes'"):
        check_parser("react", ChatFormat(family_tokenizer("chatml")), schemas())
    with pytest.raises(ConfigError, match=r"'react' does not read .*: use 'llama3_json'"):
        check_parser("react", ChatFormat(family_tokenizer("headers")), schemas())
    with pytest.raises(ConfigError, match=r"no registered parser does \(.*hermes, .*, react, .*\)"):
        check_parser("hermes", ChatFormat(family_tokenizer("inst")), schemas())


def test_a_parser_must_read_the_same_arguments() -> None:
    """A template that renders arguments as Python text cannot be parsed back."""
    printed = CHATML.replace("call.function.arguments | tojson", "call.function.arguments | string")
    with pytest.raises(ConfigError, match="no registered parser does"):
        check_parser("hermes", ChatFormat(tokenizer_for(printed)), schemas())


NO_CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_templates_without_calls_suit_formats_that_the_prompt_explains() -> None:
    for template in (
        NO_CALLS,
        "{% if messages[-1].tool_calls %}{{ raise_exception('no calls') }}{% endif %}" + NO_CALLS,
    ):
        chat = ChatFormat(tokenizer_for(template))
        check_parser("react", chat, schemas())
        with pytest.raises(ConfigError, match="'hermes' does not fit the chat template, which writes no tool calls"):
            check_parser("hermes", chat, schemas())


def test_template_without_tools_accepts_every_parser() -> None:
    check_parser("react", ChatFormat(family_tokenizer("chatml")), ())


# ---- SGLang's, where it is not installed -----------------------------------------------------------------------------


def test_sglang_parsers_without_sglang_show_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "find_spec", lambda name: None)
    sglang.detectors.cache_clear()
    with pytest.raises(ConfigError, match=r"need SGLang, which is not installed: pip install 'agentrl-train.sglang.'"):
        tool_parsers.get("sglang/hermes-of-this-test")


def test_sglangs_parsers_are_named_among_the_valid() -> None:
    with pytest.raises(UnknownNameError, match=r"valid: .*hermes, .*, react, sglang/NAME"):
        tool_parsers.get("of_nobody")
    assert tool_parsers.is_builtin("sglang/qwen3_coder")
    assert not tool_parsers.is_builtin("sglang/mine.py:Parser")
