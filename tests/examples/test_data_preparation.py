"""Preparing GSM8K, MATH and Geometry3K gives verl's columns; the trainable datasets load as tasks."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vision_models import picture

from agentrl.config.data import DataConfig
from agentrl.data.preparation import prepare_splits, preparing_parser, write_tasks
from agentrl.data.tasks import load_tasks
from agentrl.errors import DataError
from agentrl.registry import load_file

EXAMPLES = Path(__file__).parents[2] / "examples"
gsm8k = load_file(EXAMPLES / "gsm8k_tool/prepare.py")
math_dataset, geo3k = (load_file(EXAMPLES / f"data_preparation/{name}.py") for name in ("math_dataset", "geo3k"))

GSM8K = [
    {"question": "Tom has 3 bags of 24 nuts. How many nuts?", "answer": "3 * 24 = <<3*24=72>>72\n#### 72"},
    {"question": "A car costs 1,000 more than 500. How much?", "answer": "It costs 1500.\n#### 1,500"},
]
MATH = [
    {"problem": "Half of 1?", "level": "Level 1", "type": "Algebra", "solution": r"It is $\boxed{\frac{1}{2}}$."},
    {"problem": "2+2?", "level": "Level 1", "type": "Algebra", "solution": r"Not \boxed{5} but $\boxed 4$."},
]
IMAGE = {"bytes": picture(), "path": "1.png"}
GEO3K = [{"problem": "<image>Find x.", "answer": "3", "images": [IMAGE]}]
VERL_COLUMNS = {"data_source", "prompt", "ability", "reward_model", "extra_info"}


def written(rows, path):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(params=["jsonl", "parquet"])
def source(request, tmp_path):
    return lambda rows: written(rows, tmp_path / f"source.{request.param}")


def tasks_of(path, columns=VERL_COLUMNS):
    assert set(pq.read_schema(path).names) == columns
    return load_tasks([str(path)], DataConfig())


def test_gsm8k_with_a_tool_that_knows_the_answer(source, tmp_path):
    path = write_tasks(source(GSM8K), "train", tmp_path / "out", gsm8k.tool_task)
    assert path == tmp_path / "out/train.parquet"
    tasks = tasks_of(path, VERL_COLUMNS | {"agent_name"})
    assert [task.ground_truth for task in tasks] == ["72", "1500"]
    assert [task.index for task in tasks] == [0, 1]
    for task, row in zip(tasks, GSM8K, strict=True):
        assert (task.data_source, task.agent_name) == ("openai/gsm8k", "tool_agent")
        assert [message["role"] for message in task.messages] == ["system", "user"]
        assert task.messages[1]["content"] == row["question"]
        assert task.tools_kwargs == {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": task.ground_truth}}}
        assert row["answer"] not in str(task.messages)


def test_gsm8k_rows_become_tasks_without_tools(source, tmp_path):
    tasks = tasks_of(write_tasks(source(GSM8K), "train", tmp_path / "out", gsm8k.plain_task))
    assert [(task.ground_truth, task.agent_name, task.tools_kwargs) for task in tasks] == [
        ("72", None, {}),
        ("1500", None, {}),
    ]
    assert tasks[0].messages[0]["content"].startswith(GSM8K[0]["question"])
    assert '"####"' in tasks[0].messages[0]["content"]


def test_math_prompt_asks_for_a_boxed_answer(source, tmp_path):
    tasks = tasks_of(write_tasks(source(MATH), "test", tmp_path / "out", math_dataset.task))
    assert [task.ground_truth for task in tasks] == [r"\frac{1}{2}", "4"]
    assert tasks[0].messages[0]["content"].endswith(r"within \boxed{}.")
    assert tasks[0].extra_info["level"] == "Level 1"


def test_geo3k_keeps_its_images_byte_for_byte(tmp_path):
    source = written(GEO3K, tmp_path / "source.parquet")
    path = write_tasks(source, "train", tmp_path / "out", geo3k.task, kept="images")
    (row,) = pq.read_table(path).to_pylist()
    assert row.keys() == VERL_COLUMNS | {"images"}
    assert row["images"] == [IMAGE]
    assert row["reward_model"] == {"style": "rule", "ground_truth": "3"}
    (task,) = load_tasks([str(path)], DataConfig())
    assert list(task.images.values()) == [picture()]


@pytest.mark.parametrize(
    ("module", "make_task", "row", "complaint"),
    [
        (gsm8k, "tool_task", {"question": "Why?", "answer": "because"}, "expected a `question`"),
        (gsm8k, "plain_task", {"answer": "#### 3"}, "expected a `question`"),
        (math_dataset, "task", {"problem": "Why?", "solution": r"\boxed{never closed"}, "expected a `problem`"),
        (geo3k, "task", {"problem": "Why?"}, "expected a `problem`"),
    ],
)
def test_row_that_is_not_a_task_is_named(tmp_path, module, make_task, row, complaint):
    source = written([row], tmp_path / "bad.jsonl")
    with pytest.raises(DataError, match=rf"bad\.jsonl row 0 \(line 1\): {complaint}"):
        write_tasks(source, "train", tmp_path, getattr(module, make_task))


def test_null_fields_count_as_missing(source, tmp_path):
    with pytest.raises(DataError, match=r"row 0.*expected a `question`"):
        write_tasks(source([{"question": None, "answer": "#### 3"}]), "train", tmp_path / "out", gsm8k.plain_task)


@pytest.mark.parametrize("script", ["gsm8k_tool/prepare", "data_preparation/math_dataset", "data_preparation/geo3k"])
def test_a_mistake_is_one_line_and_status_2(tmp_path, capsys, monkeypatch, script):
    absent, taken = tmp_path / "absent.jsonl", tmp_path / "taken"
    taken.touch()
    given = written(GSM8K if "gsm8k" in script else MATH, tmp_path / "given.jsonl")
    if "geo3k" in script:
        given = written(GEO3K, tmp_path / "given.parquet")
    for train, complaint in ((absent, "absent.jsonl: no such file"), (given, "train.parquet: cannot be written")):
        monkeypatch.setattr(sys, "argv", ["prepare", f"--train={train}", f"--out={taken}"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / f"{script}.py"), run_name="__main__")
        (line,) = capsys.readouterr().err.splitlines()
        assert ended.value.code == 2
        assert complaint in line


def test_images_come_from_parquet_that_has_them(tmp_path):
    with pytest.raises(DataError, match="only be read from Parquet"):
        write_tasks(written(GSM8K, tmp_path / "a.jsonl"), "train", tmp_path, geo3k.task, kept="images")
    with pytest.raises(DataError, match=r"no column 'images'"):
        write_tasks(written(GSM8K, tmp_path / "a.parquet"), "train", tmp_path, geo3k.task, kept="images")
    with pytest.raises(DataError, match="no such file"):
        write_tasks(str(tmp_path / "absent.jsonl"), "train", tmp_path, gsm8k.plain_task)


def test_command_writes_both_splits_and_reads_the_hub_by_default(tmp_path, capsys):
    parser = preparing_parser("", "data/gsm8k", "openai/gsm8k/main")
    assert parser.parse_args([]).test == "openai/gsm8k/main:test"
    files = [f"--{split}={written(GSM8K, tmp_path / f'{split}.jsonl')}" for split in ("train", "test")]
    prepare_splits(parser.parse_args([*files, f"--out={tmp_path}"]), gsm8k.plain_task)
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/{split}.parquet: 2 tasks" for split in ("train", "test")
    ]
