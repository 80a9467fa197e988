"""SGLang's detectors behind our parser, compared with our own Hermes parser, which shares no code with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from chat_families import family_tokenizer, schemas, tokenizer_for
from hypothesis import given
from hypothesis import strategies as st
from sglang_server import require_sglang

from agentrl.chat.base import ParsedCall, ParsedTurn, ToolParser, parser_for
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers import check_parser, sglang, tool_parsers
from agentrl.errors import ConfigError, UnknownNameError
from agentrl.types.messages import FunctionSchema, ToolSchema

pytestmark = [pytest.mark.slow, pytest.mark.sglang]

PROPERTIES = {"n": {"type": "integer"}, "q": {"type": "string"}}
TOOL = ToolSchema(function=FunctionSchema(name="f", parameters={"type": "object", "properties": PROPERTIES}))
HERMES = '<tool_call>\n{"name": "f", "arguments": {"n": 1, "q": "é"}}\n</tool_call>'
CALLS = {
    "hermes": HERMES,
    "qwen25": HERMES,
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=q>\né\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm45": "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n<arg_key>q</arg_key>\n"
    "<arg_value>é</arg_value>\n</tool_call>",
    "deepseekv31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"n": 1, "q": "é"}'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    '{"n": 1, "q": "é"}<|tool_call_end|><|tool_calls_section_end|>',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"n": 1, "q": "é"}}]',
    "minimax-m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="n">1</parameter>\n'
    '<parameter name="q">é</parameter>\n</invoke>\n</minimax:tool_call>',
}


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    require_sglang()


def parser(name: str) -> ToolParser:
    return parser_for(tool_parsers.get(f"sglang/{name}")(), [TOOL])


def hermes_call(name: object, arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CALLS)
def test_calls_in_each_model_family_format(name: str) -> None:
    turn = parser(name).parse(f"Let me see. {CALLS[name]}")
    assert turn.content == "Let me see."
    (call,) = turn.calls
    assert (call.name, json.loads(call.arguments), call.error) == ("f", {"n": 1, "q": "é"}, None)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CALLS)
def test_call_of_an_unknown_tool_is_answered(name: str) -> None:
    """The toolbox reports the unknown tool to the model; SGLang's default would drop the call."""
    other = parser_for(tool_parsers.get(f"sglang/{name}")(), schemas())
    assert [call.name for call in other.parse(CALLS[name]).calls] == ["f"]


def test_several_calls_in_a_turn_are_read() -> None:
    turn = parser("qwen25").parse(f"{hermes_call('f', {'n': 1})}\n{hermes_call('g', {})}")
    assert [(call.name, call.arguments, call.error) for call in turn.calls] == [
        ("f", '{"n": 1}', None),
        ("g", "{}", None),
    ]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "body", ["{bad", "1", "[1]", '{"name": 3, "arguments": {}}', '{"name": "f", "arguments": [1]}']
)
@pytest.mark.parametrize("name", ["hermes", "qwen25"])
def test_unreadable_call_is_an_error(name: str, body: str) -> None:
    (call,) = parser(name).parse(f"<tool_call>\n{body}\n</tool_call>").calls
    assert call.error
    assert "cannot be read" in call.error or "no name" in call.error


def test_skipped_calls_next_to_valid_ones_are_reported() -> None:
    calls = parser("qwen25").parse(f"<tool_call>\n{{bad\n</tool_call>\n{HERMES}").calls
    assert [(call.name, call.error is None) for call in calls] == [("f", True), ("", False)]
    assert "2 calls begin, 1 can be read. The tools are: f." in str(calls[1].error)


def test_calls_in_thoughts_are_not_made() -> None:
    turn = parser("qwen25").parse(f"<think>\nshall I {HERMES}?\n</think>\nNo.")
    assert turn == ParsedTurn("No.", (), f"shall I {HERMES}?")
    assert parser("qwen25").parse(f"<think>\nshall I {HERMES}?") == ParsedTurn("", (), f"shall I {HERMES}?")
    assert [call.name for call in parser("qwen25").parse(f"or so</think>{HERMES}").calls] == ["f"]


json_arguments = st.dictionaries(
    st.text(),
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text() | st.lists(st.integers(), max_size=2),
)


@given(st.sampled_from(["f", "add", "é"]), json_arguments)
def test_reads_what_our_hermes_parser_reads(name: str, arguments: dict[str, object]) -> None:
    text = f"So: {hermes_call(name, arguments)}"
    if text.count("tool_call>") == 2 and "</think>" not in text:
        ours, theirs = tool_parsers.get("hermes")().parse(text), parser("hermes").parse(text)
        assert theirs.content == ours.content
        assert [*map(_meant, theirs.calls)] == [*map(_meant, ours.calls)]


def _meant(call: ParsedCall) -> tuple[str, object, str | None]:
    return call.name, json.loads(call.arguments), call.error


fragments = st.sampled_from(
    [*CALLS.values(), "<think>", "</think>", "<tool_call>", "</tool_call>", "[", "{", '"', "f(", "\n"]
)
texts = st.lists(fragments | st.text(max_size=8), max_size=5).map("".join)


@given(st.data())
def test_model_text_never_raises(data: st.DataObject) -> None:
    """The output also stays valid: calls without an error have a name and an argument object."""
    text = data.draw(texts | st.text())
    cut = data.draw(st.integers(0, len(text)))
    for name in sglang.detectors():
        for call in parser(name).parse(text[:cut]).calls:
            assert call.error or (call.name and isinstance(json.loads(call.arguments), dict))


QWEN3_CODER = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
        {%- for name, value in call.function.arguments | items %}
            {{- '<parameter=' + name + '>\\n' }}{{- value | tojson if value is mapping else value }}
            {{- '\\n</parameter>\\n' }}
        {%- endfor %}
        {{- '</function>\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""


def test_fits_the_template_that_writes_its_format() -> None:
    check_parser("sglang/qwen25", ChatFormat(family_tokenizer("chatml")), schemas())
    coder = ChatFormat(tokenizer_for(QWEN3_CODER))
    check_parser("sglang/qwen3_coder", coder, schemas())
    with pytest.raises(ConfigError, match="'sglang/mistral' does not read the chat template's calls"):
        check_parser("sglang/mistral", coder, schemas())


def test_unknown_name_gets_the_nearest_suggestion() -> None:
    with pytest.raises(
        UnknownNameError, match="unknown tool parser 'sglang/qwen3coder': did you mean 'sglang/qwen3_co"
    ):
        tool_parsers.get("sglang/qwen3coder")


def test_loading_is_quiet_and_needs_no_kernels() -> None:
    """In a separate process: loading prints nothing, initializes no GPU, and imports nothing that needs one."""
    script = (
        "import sys\n"
        "from agentrl.chat.parsers import tool_parsers\n"
        "tool_parsers.get('sglang/hermes')().parse('<tool_call>{')\n"
        "import torch\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert not {'sgl_kernel', 'torchvision', 'flashinfer'} & set(sys.modules)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG")}
    done = subprocess.run(  # our own interpreter
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
