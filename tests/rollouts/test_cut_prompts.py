"""Prompts cut to fit, rendered by real chat templates with the tools and instructions of their rows."""

from __future__ import annotations

from functools import partial

import pytest
from chat_families import CHATS, contents
from hypothesis import given
from hypothesis import strategies as st
from loop_builders import add, config

from agentrl.chat.encode import token_pieces
from agentrl.data.fields import FieldError
from agentrl.data.prompt_length import Measure, cut_prompt
from agentrl.rollouts.row_check import RowCheck
from agentrl.tools.toolbox import Toolbox
from agentrl.types.task import Task

BLOCKS = st.lists(st.one_of(contents, st.sampled_from(["<|im_", "end|>", "<tool_", "call>"])), min_size=3, max_size=9)


def measure_of(name: str) -> Measure:
    chat = CHATS[name]
    rows = RowCheck(chat, Toolbox([add]), config("tool_agent"), None)
    return Measure(rows.prompt_length, partial(token_pieces, chat.tokenizer), chat.template.control_tokens)


MEASURES = {(name, loop): measure_of(name) for name in ("chatml", "thinking") for loop in ("tool_agent", "react")}


def prompt_text(name: str, task: Task) -> str:
    """The independent reference: the complete prompt as the template renders it."""
    return CHATS[name].template.render(task.messages, Toolbox([add]).schemas, prompt=True)


@given(
    key=st.sampled_from(sorted(MEASURES)),
    blocks=BLOCKS,
    excess=st.integers(1, 20),
    side=st.sampled_from(["left", "middle", "right"]),
)
def test_the_result_fits_and_differs_only_inside_the_last_user_text(key, blocks, excess, side):
    (name, loop), measure, text = key, MEASURES[key], "".join(blocks)
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    messages = [{"role": "system", "content": "Be brief."}, *history, {"role": "user", "content": f"Q{text}Z"}]
    task = Task(messages, agent_name=loop)
    limit = measure.length_of(task) - excess
    try:
        cut = cut_prompt(task, measure, limit, side)
    except FieldError:
        bare = Task([*messages[:-1], {"role": "user", "content": ""}], agent_name=loop)
        assert measure.length_of(bare) > limit
        return
    assert measure.length_of(cut) <= limit
    assert list(cut.messages[:-1]) == messages[:-1]
    kept, whole = cut.messages[-1]["content"], messages[-1]["content"]
    splits = {"left": [0], "right": [len(kept)], "middle": range(len(kept) + 1)}[side]
    assert any(whole.startswith(kept[:split]) and whole.endswith(kept[split:]) for split in splits)
    before, after = prompt_text(name, task).split(whole)
    assert prompt_text(name, cut) == f"{before}{kept}{after}"
    for token in CHATS[name].template.control_tokens:  # cutting must not create a control token
        assert kept.count(token) <= whole.count(token)


def test_prompts_are_cut_no_more_than_needed():
    measure = MEASURES["chatml", "tool_agent"]
    task = Task([{"role": "user", "content": "What is the weather like in Paris? " * 40}])
    length = measure.length_of(task)
    for excess in (1, 10, 100):
        assert length - excess - 3 <= measure.length_of(cut_prompt(task, measure, length - excess, "left")) <= length


@pytest.mark.parametrize("side", ["left", "middle", "right"])
def test_control_tokens_in_user_text_are_cut_as_a_unit(side):
    measure = MEASURES["chatml", "tool_agent"]
    task = Task([{"role": "user", "content": "<tool_call>" * 30}])
    text = cut_prompt(task, measure, measure.length_of(task) - 7, side).messages[0]["content"]
    assert text == "<tool_call>" * 23
