"""Each public template with tools has a built-in parser that reads its calls."""

from __future__ import annotations

import pytest
from parser_contract import Call, schemas_of
from public_templates import NAMES, public_tokenizer
from template_calls import calls_of, needs_public_templates

from agentrl.chat.base import parser_for
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers import tool_parsers
from agentrl.chat.parsers.choice import find_format
from agentrl.chat.parsers.fit import written_turn

FORMATS = {
    "deepseek_v3": ["deepseek_r1_distill", "deepseekv3"],
    "gemma4": ["diffusion_gemma", "gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5"],
    "glm": ["glm4moe"],
    "gpt_oss": ["gptoss"],
    "hermes": ["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"],
    "llama3_json": ["llama3_1", "llama3_2"],
    "muse_glimmer": ["muse_glimmer"],
    "pythonic": ["lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", "lfm2_v2"],
    "qwen3_coder": [
        *("nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra"),
        *("qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8"),
    ],
}
WITHOUT_CALLS = [
    *("cohere", "cohere2", "gemma", "gemma3", "idefics3", "lfm2", "llama3", "llava_next", "phi3", "phi3_5"),
    *("qwen2_5_vl", "smolvlm"),
]
"""Templates that write no calls."""
CASES = [(name, template) for name, templates in FORMATS.items() for template in templates]
CALLS: list[Call] = [
    (
        "look_up",
        {"text": 'Größe: 日本 🙂\n"say" \\ {x} <b>', "count": 2, "options": {"deep": [True, None, {"a": 1}]}},
    ),
    ("add-up", {"a": -1.5, "b": False, "c": ""}),
    ("now", {}),
]


def test_every_public_template_is_listed() -> None:
    assert not NAMES or sorted([*WITHOUT_CALLS, *(template for _, template in CASES)]) == NAMES


@needs_public_templates
@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "template"), CASES)
def test_calls_of_public_templates(name: str, template: str) -> None:
    chat = ChatFormat(public_tokenizer(template))
    found = find_format(chat)
    assert (found.name, found.problem) == (name, "")
    for number in (1, 2, 3):
        calls = CALLS[:number]
        text = written_turn(chat, schemas_of(calls), calls)
        if number > 1 and text is None:
            continue  # one call in a turn
        assert text is not None
        assert calls_of(parser_for(tool_parsers.get(name)(), schemas_of(calls)).parse(text)) == calls


@pytest.mark.slow
@needs_public_templates
@pytest.mark.parametrize("template", WITHOUT_CALLS)
def test_templates_without_calls(template: str) -> None:
    assert find_format(ChatFormat(public_tokenizer(template))).problem == "the chat template writes no tool calls"
