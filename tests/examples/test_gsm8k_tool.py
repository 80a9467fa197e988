"""Preparing GSM8K gives verl's columns, which load as tasks for the tool agent."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.config.data import DataConfig
from agentrl.data.tasks import load_tasks
from agentrl.errors import DataError
from agentrl.registry import load_object

PREPARE = Path(__file__).parents[2] / "examples/gsm8k_tool/prepare.py"
prepare = load_object(f"{PREPARE}:prepare")

ROWS = [
    {"question": "Tom has 3 bags of 24 nuts. How many nuts?", "answer": "3 * 24 = <<3*24=72>>72\n#### 72"},
    {"question": "A car costs 1,000 more than 500. How much?", "answer": "It costs 1500.\n#### 1,500"},
]


@pytest.fixture(params=["jsonl", "parquet"])
def source(request, tmp_path):
    path = tmp_path / f"source.{request.param}"
    if request.param == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def test_prepared_rows_are_tasks_whose_tool_knows_the_answer(source, tmp_path):
    path = prepare(source, "train", tmp_path / "out")
    assert path == tmp_path / "out/train.parquet"
    columns = {"data_source", "agent_name", "prompt", "ability", "reward_model", "extra_info"}
    assert set(pq.read_schema(path).names) == columns
    tasks = load_tasks([str(path)], DataConfig())
    assert [task.ground_truth for task in tasks] == ["72", "1500"]
    assert [task.index for task in tasks] == [0, 1]
    for task, row in zip(tasks, ROWS, strict=True):
        assert (task.data_source, task.agent_name) == ("openai/gsm8k", "tool_agent")
        assert [message["role"] for message in task.messages] == ["system", "user"]
        assert task.messages[1]["content"] == row["question"]
        assert task.tools_kwargs == {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": task.ground_truth}}}
        assert row["answer"] not in str(task.messages)


def test_a_row_without_an_answer_is_named(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps({"question": "Why?", "answer": "because"}) + "\n")
    with pytest.raises(DataError, match=r"bad\.jsonl row 1 \(line 2\): expected a `question`"):
        prepare(str(path), "train", tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        prepare(str(tmp_path / "absent.jsonl"), "train", tmp_path)
