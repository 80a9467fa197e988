"""Rows of labelled conversations."""

from __future__ import annotations

import json

import pytest

from agentrl.config.data import DataConfig
from agentrl.data.fields import FieldError
from agentrl.data.labelled import load_labelled, read_labelled
from agentrl.errors import DataError

TALK = [
    {"role": "user", "content": "6*7?"},
    {"role": "assistant", "content": "42"},
    {"role": "user", "content": "and 6*8?"},
    {"role": "assistant", "content": "49"},
]


def read(of_turns: bool, **columns: object):
    return read_labelled({"messages": TALK, **columns}, "labels" if of_turns else "label", of_turns)


@pytest.mark.parametrize(("value", "label"), [(1, 1.0), (False, 0.0), (0.5, 0.5), (-3, -3.0)])
def test_conversation_label_is_that_of_its_last_turn(value, label):
    assert read(False, label=value).labels == [None, label]


def test_turn_labels_are_read():
    assert read(True, labels=[True, 0]).labels == [1.0, 0.0]
    assert read(True, labels=[None, 1]).labels == [None, 1.0]


def test_a_leading_assistant_message_is_prompt():
    talk = [{"role": "assistant", "content": "Hello."}, *TALK]
    assert read(True, messages=talk, labels=[1, 0]).labels == [1.0, 0.0]
    with pytest.raises(FieldError, match="no assistant turn after the prompt"):
        read(False, messages=talk[:2], label=1)


@pytest.mark.parametrize(
    ("of_turns", "columns", "said"),
    [
        (False, {}, "'label'"),
        (False, {"label": "yes"}, "'label': expected a number, or true or false"),
        (False, {"label": float("inf")}, "'label': expected a number"),
        (True, {"labels": [1]}, "'labels': expected a list of 2 labels, one per assistant turn"),
        (True, {"labels": 1}, "'labels': expected a list of 2 labels"),
        (True, {"labels": [1, "no"]}, r"'labels\[1\]': expected a number"),
        (True, {"labels": [None, None]}, "no turn has a label"),
    ],
)
def test_row_without_labels_is_refused(of_turns, columns, said):
    with pytest.raises(FieldError, match=said):
        read(of_turns, **columns)


def test_file_and_row_are_named(tmp_path):
    rows = [{"messages": TALK, "good": 1}, {"messages": TALK, "good": "?"}]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match=r"rows\.jsonl row 1 .*'good'"):
        load_labelled([str(file)], DataConfig(), label_key="good", of_turns=False)
    assert len(load_labelled([str(file)], DataConfig(), label_key="good", of_turns=False, max_samples=1)) == 1
