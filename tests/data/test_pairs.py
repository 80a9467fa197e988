"""Preference pairs in either of TRL's formats: which rows are read, and which are refused."""

from __future__ import annotations

import json

import pytest

from agentrl.config.data import DataConfig
from agentrl.data.pairs import load_pairs
from agentrl.errors import DataError


def user(text="2*3?"):
    return {"role": "user", "content": text}


def model(text):
    return {"role": "assistant", "content": text}


def call(expression):
    function = {"name": "calculator", "arguments": {"expression": expression}}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"role": "tool", "content": "6"}
SCHEMA = {"name": "calculator", "description": "Computes.", "parameters": {"type": "object", "properties": {}}}
GOOD = {"prompt": "2*3?", "chosen": "6", "rejected": "5"}


def load(tmp_path, *rows, **config):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_pairs([str(path)], DataConfig(**config))


@pytest.mark.parametrize(
    "row",
    [
        GOOD,
        {"prompt": [user()], "chosen": "6", "rejected": "5"},
        {"prompt": [user()], "chosen": [model("6")], "rejected": [model("5")]},
        {"chosen": [user(), model("6")], "rejected": [user(), model("5")]},
        {"prompt": "2*3?", "chosen": [user(), model("6")], "rejected": [user(), model("5")]},
        {"prompt": [user()], "chosen": [user(), model("6")], "rejected": [user(), model("5")]},
    ],
    ids=["text", "mixed", "messages", "whole", "whole beside text", "whole beside messages"],
)
def test_each_form_of_a_pair_is_read(tmp_path, row):
    (pair,) = load(tmp_path, row)
    assert pair.prompt == [user()]
    assert pair.chosen.messages == [user(), model("6")]
    assert pair.rejected.messages == [user(), model("5")]
    assert pair.chosen.tools is None


def test_prompt_of_a_pair_is_the_common_prefix_before_an_assistant_turn(tmp_path):
    turns = [SYSTEM, user("hi"), model("hello"), user()]
    deeper = {"chosen": [*turns, call("2*3"), TOOL, model("6")], "rejected": [*turns, call("2*3"), TOOL, model("5")]}
    asked = {
        "chosen": [user("a"), model("b"), user("c"), model("d")],
        "rejected": [user("a"), model("b"), user("e"), model("f")],
    }
    longer = {"chosen": [user(), model("6")], "rejected": [user(), model("6"), user("sure?"), model("5")]}
    assert [pair.num_shared for pair in load(tmp_path, deeper, asked, longer)] == [6, 1, 1]


def test_tools_and_the_system_prompt_belong_to_both_sides(tmp_path):
    (pair,) = load(tmp_path, {**GOOD, "tools": [SCHEMA]}, system_prompt="Be brief.")
    assert pair.prompt == [SYSTEM, user()]
    assert [tool.name for side in (pair.chosen, pair.rejected) for tool in side.tools] == ["calculator"] * 2


def test_conversation_may_contain_a_system_message_missing_in_a_text_prompt(tmp_path):
    row = {"prompt": "2*3?", "chosen": [SYSTEM, user(), model("6")], "rejected": [SYSTEM, user(), model("5")]}
    (pair,) = load(tmp_path, row)
    assert pair.num_shared == 2


def test_configured_prompt_column(tmp_path):
    (pair,) = load(tmp_path, {"question": "2*3?", "chosen": "6", "rejected": "5"}, prompt_key="question")
    assert pair.prompt == [user()]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "x", "choosen": "6", "rejected": "5"}, "no field 'chosen', expected text or a list of messages"),
        ({"chosen": "6", "rejected": "5"}, "field 'chosen' has no prompt: add 'prompt'"),
        ({**GOOD, "rejected": "6"}, "fields 'chosen' and 'rejected' are the same"),
        ({**GOOD, "rejected": 3}, "field 'rejected': expected text or a list of messages, got a number"),
        ({"chosen": [user("a"), model("6")], "rejected": [user("b"), model("6")]}, "share no prompt"),
        ({"chosen": [user(), model("6")], "rejected": [user()]}, "field 'rejected': no assistant turn"),
        ({**GOOD, "chosen": [user("another"), model("6")]}, "'chosen' is a complete conversation that does not start"),
        ({**GOOD, "chosen": [model("6"), model("7")]}, "field 'prompt + chosen[2]': two assistant messages in a row"),
        ({**GOOD, "tools": "{"}, "field 'tools': not JSON"),
        ({**GOOD, "prompt": 3}, "field 'prompt': expected a list of messages, got a number"),
    ],
)
def test_a_bad_pair_is_named(tmp_path, row, expected):
    with pytest.raises(DataError) as caught:
        load(tmp_path, GOOD, row)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/pairs.jsonl row 1 (line 2): ")
    assert expected in text
    assert "\n" not in text
