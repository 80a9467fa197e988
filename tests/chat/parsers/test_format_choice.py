"""`rollout.multi_turn.format=auto`: the parser that reads back what the chat template writes."""

from __future__ import annotations

import pytest
from chat_families import CHATML, family_tokenizer, tokenizer_for

from agentrl.agent_loops.loading import LoopFactory
from agentrl.chat.base import ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers import AUTO, tool_parsers
from agentrl.chat.parsers.choice import find_format, format_of
from agentrl.chat.parsers.hermes import HermesParser
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.rollouts.row_check import RowCheck
from agentrl.tools.function import tool
from agentrl.tools.toolbox import Toolbox
from agentrl.types.task import Task

START = "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
END = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def template(calls: str) -> ChatFormat:
    """A template that writes the content, then `calls` if the message has calls."""
    return ChatFormat(tokenizer_for(f"{START}{{% if m.tool_calls %}}{calls}{{% endif %}}{END}"))


ONE_BY_ONE = "{% for c in m.tool_calls %}{% set f = c.function %}BODY{% endfor %}"
XML = (
    "<tool_call>\n<function={{ f.name }}>\n{% for key, value in f.arguments.items() %}<parameter={{ key }}>\n"
    "{{ value | tojson if value is mapping else value }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)
MISTRAL = "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"
PYTHON = (
    "<|tool_call_start|>[{% for c in m.tool_calls %}{% set f = c.function %}{{ f.name }}({% for k in f.arguments %}"
    "{{ k }}={{ f.arguments[k] | tojson }}{{ ', ' if not loop.last }}{% endfor %})"
    "{{ ', ' if not loop.last }}{% endfor %}]<|tool_call_end|>"
)


@pytest.mark.parametrize(
    ("name", "chat"),
    [
        ("hermes", ChatFormat(family_tokenizer("chatml"))),
        ("hermes", ChatFormat(family_tokenizer("thinking"))),
        ("llama3_json", ChatFormat(family_tokenizer("headers"))),  # it writes one call only
        ("qwen3_coder", template(ONE_BY_ONE.replace("BODY", XML))),
        ("mistral", template(ONE_BY_ONE.replace("BODY", MISTRAL))),
        ("pythonic", template(PYTHON)),
    ],
)
def test_format_that_reads_back_the_template(name: str, chat: ChatFormat) -> None:
    found = find_format(chat)
    assert (found.name, found.problem) == (name, "")
    assert found.reason == "reads the calls that the chat template writes"
    assert (format_of(AUTO, chat), format_of("react", chat)) == (name, "react")


LOST = CHATML.replace("call.function.arguments | tojson", "'{}'")


@pytest.mark.parametrize(
    ("chat", "says"),
    [
        (
            ChatFormat(family_tokenizer("inst")),
            r"no built-in format \(hermes, .*\) reads the chat",
        ),
        (ChatFormat(tokenizer_for(LOST)), "no built-in format"),
        (template(""), "the chat template writes no tool calls"),
    ],
)
def test_templates_that_no_format_reads(chat: ChatFormat, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check(chat)
    assert find_format(chat).name == "hermes"  # without tools, any format will do
    check(chat, tools=False)


class OtherText(HermesParser):
    def parse(self, text: str) -> ParsedTurn:
        turn = super().parse(text)
        return ParsedTurn(f"{turn.content}!", turn.calls)


@pytest.mark.parametrize(("parser", "problem"), [(HermesParser, ""), (OtherText, "hermes and zeta read the chat ")])
def test_several_formats_must_agree(parser: type, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_parsers, "_lazy", {**tool_parsers._lazy, "zeta": ""})
    monkeypatch.setattr(tool_parsers, "_objects", {"zeta": parser})
    found = find_format(ChatFormat(family_tokenizer("chatml")))
    assert found.name == "hermes"
    assert found.problem.startswith(problem)
    assert found.reason == ("" if problem else "reads the calls that the chat template writes, as do zeta")


# ---- in a run -------------------------------------------------------------------------------------------------------


@tool
def look(place: str) -> str:
    """Look.

    Args:
        place: where.
    """
    return place


def config(loop: str = "tool_agent", **multi_turn: object) -> RunConfig:
    agent = {"default_agent_loop": loop}
    return RunConfig.model_validate({"model": {"path": "none"}, "rollout": {"agent": agent, "multi_turn": multi_turn}})


def task(tool_format: str | None = None) -> Task:
    options = {} if tool_format is None else {"tool_config": {"tool_format": tool_format}}
    return Task([{"role": "user", "content": "Hi"}], extra_info=options)


def check(chat: ChatFormat, settings: RunConfig | None = None, row: Task | None = None, *, tools: bool = True) -> None:
    settings = settings or config()
    toolbox = Toolbox([look] if tools else [], settings.rollout.multi_turn)
    RowCheck(chat, toolbox, settings, None).prompt_length(row or task())


def test_loops_rows_and_configuration_may_name_a_format() -> None:
    chat = ChatFormat(family_tokenizer("headers"))
    loops = LoopFactory(chat, config())
    assert config().rollout.multi_turn.format == AUTO
    assert loops.build(None).call_format == loops.build(None, AUTO).call_format == "llama3_json"
    assert loops.build("react_agent").call_format == loops.build("react_agent", AUTO).call_format == "react"
    assert loops.build(None, "hermes").call_format == "hermes"
    check(chat)
    check(chat, row=task(AUTO))
    with pytest.raises(ConfigError, match=r"'hermes' does not read .*: use 'llama3_json'"):
        check(chat, config(format="hermes"))


def test_react_needs_no_calls_in_the_template() -> None:
    check(template(""), config("react_agent"))
