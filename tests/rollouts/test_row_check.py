"""Row options that are refused at the start, and prompt lengths."""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import replace

import pytest
from chat_families import CHATML, family_tokenizer, tokenizer_for
from loop_builders import CHAT, TASK, ListEngine, add, config, runner

from agentrl.agent_loops import AgentLoop, agent_loops
from agentrl.chat.base import ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers import tool_parsers
from agentrl.engines.base import SamplingParams
from agentrl.errors import ConfigError, DataError
from agentrl.interactions.base import BaseInteraction
from agentrl.interactions.gsm8k import Gsm8kInteraction
from agentrl.rollouts.row_check import RowCheck
from agentrl.tools.toolbox import Toolbox


async def search(query: str) -> str:
    """Search.

    Args:
        query: what for.
    """
    return query


def row_check(run_config, tools=(add, search), interactions=None, chat=CHAT) -> RowCheck:
    return RowCheck(chat, Toolbox(tools, run_config.rollout.multi_turn), run_config, interactions)


def row(agent_name=None, messages=TASK.messages, **extra_info):
    return replace(TASK, agent_name=agent_name, messages=messages, extra_info=extra_info)


REPLY = {"role": "assistant", "content": "Hi"}
ROWS = {
    "as configured": row(),
    "react": row("react"),
    "single turn": row("single_turn"),
    "one tool": row(tool_config={"available_tools": ["add"]}),
    "no tools": row(tool_config={"available_tools": []}),
    "react with one tool": row("react", tool_selection=["search"]),
    "a system message": row("react", [{"role": "system", "content": "Be brief."}, *TASK.messages]),
}


@pytest.mark.parametrize("task", ROWS.values(), ids=ROWS)
def test_measured_prompt_length_equals_the_rollout_prompt(task):
    engine = ListEngine("5")
    rollout = asyncio.run(runner(engine, config(), tools=[add, search]).run(task, SamplingParams(), seed=0))
    assert row_check(config()).prompt_length(task) == len(rollout.trajectories[0].segments[0])
    assert row_check(config()).prompt_length(task) == len(engine.requests[0].token_ids)


def test_tools_and_instructions_count_where_they_are_shown():
    lengths = {name: row_check(config()).prompt_length(task) for name, task in ROWS.items()}
    assert len(set(lengths.values())) == len(lengths) - 1
    assert lengths["single turn"] == lengths["no tools"] < lengths["one tool"] < lengths["as configured"]
    assert lengths["react with one tool"] < lengths["react"] < lengths["a system message"]


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        (row("toool"), "field 'agent_name': unknown agent loop 'toool': did you mean 'tool'?"),
        (row(tool_config={"available_tools": ["ad"]}), "row selects an unknown tool 'ad': did you mean 'add'?"),
        (row(tool_selection=["serach"]), "row selects an unknown tool 'serach': did you mean 'search'?"),
        (replace(TASK, tools_kwargs={"serach": {}}), "unknown tool 'serach': did you mean 'search'?"),
        (replace(TASK, interaction_kwargs={"name": "techer"}), "interaction 'techer': did you mean 'teacher'?"),
        (row(tool_config={"tool_format": "hermse"}), "tool parser 'hermse': did you mean 'hermes'?"),
        (row(tool_config={"tool_format": "react"}), "'react' does not read the chat template's calls"),
        (row("react", tool_config={"tool_format": "hermes"}), "'agent_name' and field 'tool_config.tool_format'"),
        (row(tool_config={"timeouts": 1}), "did you mean 'timeout'?"),
    ],
)
def test_unknown_name_is_refused(task, complaint):
    teacher = BaseInteraction({"name": "teacher"})
    check = row_check(config(), interactions={"teacher": teacher})
    check.prompt_length(TASK)
    with pytest.raises(DataError) as error:
        check.prompt_length(task)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_tool_arguments_without_tools_are_ignored():
    task = replace(TASK, tools_kwargs={"search": {}}, interaction_kwargs={"name": "teacher"})
    row_check(config(), tools=()).prompt_length(task)
    row_check(config()).prompt_length(replace(task, agent_name="single_turn", tools_kwargs={"other": {}}))


def test_messages_that_the_template_refuses_are_the_rows_fault():
    tokenizer = copy(family_tokenizer("chatml"))
    refusal = "{% if messages[0].role == 'assistant' %}{{ raise_exception('Begin with a user') }}{% endif %}"
    tokenizer.chat_template = refusal + tokenizer.chat_template
    chat = ChatFormat(tokenizer)
    with pytest.raises(DataError, match=r"the chat template refuses a conversation of .*Begin with a user"):
        row_check(config("single_turn"), (), chat=chat).prompt_length(row(messages=[REPLY]))


def test_a_parser_that_does_not_fit_the_template_is_refused(monkeypatch):
    class Deaf:
        stop = ()

        def parse(self, text):
            return ParsedTurn(text)

    monkeypatch.setitem(tool_parsers._objects, "deaf", Deaf)
    with pytest.raises(ConfigError, match="'deaf' does not read"):
        row_check(config(format="deaf")).prompt_length(TASK)


def test_tools_for_loops_that_call_none_are_refused():
    check = row_check(config("single_turn"))
    check.prompt_length(TASK)
    with pytest.raises(ConfigError, match=r"'single_turn' calls none.*default_agent_loop=tool_agent"):
        check.finish()
    check.prompt_length(row("tool"))
    check.finish()


def test_simulated_users_check_the_arguments_of_rows():
    users = {"gsm8k": Gsm8kInteraction({"name": "gsm8k"})}
    row_check(config(), interactions=users).prompt_length(replace(TASK, interaction_kwargs={"ground_truth": "72"}))
    with pytest.raises(DataError, match=r"interaction_kwargs\.ground_truth must be a number, not None"):
        row_check(config(), interactions=users).prompt_length(TASK)


def test_a_user_without_a_base_class_needs_no_check():
    class Bare:
        async def generate_response(self, instance_id, messages):
            return True, "", 0.0, {}

    assert row_check(config(), interactions={"bare": Bare()}).prompt_length(TASK) > 0


class VerlLoop(AgentLoop):
    roles = ()
    strips_thinking = False


@pytest.mark.parametrize("name", ["react_agent", "verl"])
def test_loops_that_write_their_own_messages_cannot_strip_thoughts(name, monkeypatch):
    monkeypatch.setattr(agent_loops, "_objects", {**agent_loops._objects, "verl": VerlLoop})
    with pytest.raises(ConfigError, match=r"'rollout.multi_turn.thinking=strip' does not work with agent loop"):
        row_check(config(name, thinking="strip"), tools=()).prompt_length(TASK)
    with pytest.raises(DataError, match=r"field 'agent_name': 'rollout.multi_turn.thinking=strip' does not work"):
        row_check(config(thinking="strip")).prompt_length(row(name))
    row_check(config(name), tools=()).prompt_length(TASK)


def test_a_template_that_renders_no_answers_to_calls_cannot_strip_thoughts():
    refusing = (
        "{%- if messages | length == 3 and messages[1].tool_calls %}{{- raise_exception('no answers') }}{% endif %}"
    )
    chat = ChatFormat(tokenizer_for(CHATML.replace("{{- '\\n<tool_response>", f"{refusing}{{{{- '\\n<tool_response>")))
    row_check(config(), chat=chat).prompt_length(TASK)
    with pytest.raises(ConfigError, match=r"renders calls and their answers: .*no answers"):
        row_check(config(thinking="strip"), chat=chat).prompt_length(TASK)


THINKS = ChatFormat(family_tokenizer("thinking"))


def test_variables_of_a_row_change_its_prompt():
    silent = row(chat_template_kwargs={"enable_thinking": False})
    lengths = [row_check(config(), chat=THINKS).prompt_length(each) for each in (row(), silent)]
    engine = ListEngine("5", tokenizer=THINKS.tokenizer)
    made = runner(engine, config(), tools=[add, search], chat=THINKS)
    rollout = asyncio.run(made.run(silent, SamplingParams(), seed=0))
    prompt = THINKS.tokenizer.decode(rollout.trajectories[0].segments[0].token_ids)
    assert prompt.endswith("assistant\n<think>\n\n</think>\n\n")
    assert lengths[1] == len(engine.requests[0].token_ids) > lengths[0]


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"enable_thinkin": False}, r"has no variable 'enable_thinkin': did you mean 'enable_thinking'"),
        ({"tools": False}, "'tools' is not the name of a variable"),
    ],
)
def test_variables_that_the_template_does_not_read_are_refused(variables, complaint):
    with pytest.raises(DataError, match=complaint):
        row_check(config(), chat=THINKS).prompt_length(row(chat_template_kwargs=variables))


def test_variables_that_make_the_template_unusable_are_the_rows_fault():
    template = "{%- if loud %}{{- raise_exception('too loud') }}{% endif %}" + CHATML
    chat = ChatFormat(tokenizer_for(template))
    with pytest.raises(DataError, match="field 'chat_template_kwargs': "):
        row_check(config(), chat=chat).prompt_length(row(chat_template_kwargs={"loud": True}))
