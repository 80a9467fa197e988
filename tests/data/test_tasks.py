"""Tasks from every file format, and every error a row can have."""

from __future__ import annotations

import json
import sys

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.config.data import DataConfig
from agentrl.data.rows import hub as data_hub
from agentrl.data.tasks import load_tasks
from agentrl.errors import DataError
from agentrl.types.task import AS_CONFIGURED, ToolOptions

CALCULATOR_ROW = {
    "data_source": "calculator",
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "agent_name": "tool_agent",
    "extra_info": {
        "index": 7,
        "split": "train",
        "need_tools_kwargs": True,
        "tools_kwargs": {"calculator": {"create_kwargs": {"ground_truth": "2"}}},
        "interaction_kwargs": {"name": "teacher", "query": "1+1?"},
        "tool_selection": ["calculator"],
    },
}
SEARCH_ROW = CALCULATOR_ROW | {
    "agent_name": None,
    "extra_info": {"index": 8, "tools_kwargs": {"search": {"execute_kwargs": {"limit": 3}}}},
}


def write(path, rows):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def load(path, rows, **config):
    return load_tasks([write(path, rows)], DataConfig(**config), max_samples=-1)


def message_of(path, rows, **config):
    with pytest.raises(DataError) as caught:
        load(path, rows, **config)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("suffix", ["parquet", "json", "jsonl"])
def test_verl_columns_are_read(tmp_path, suffix):
    calculator, search = load(tmp_path / f"train.{suffix}", [CALCULATOR_ROW, SEARCH_ROW])
    assert calculator.messages == CALCULATOR_ROW["prompt"]
    assert (calculator.ground_truth, calculator.data_source, calculator.index) == ("2", "calculator", 0)
    assert (calculator.agent_name, search.agent_name) == ("tool_agent", None)
    assert calculator.interaction_kwargs == {"name": "teacher", "query": "1+1?"}
    assert calculator.extra_info["tool_selection"] == ["calculator"]
    assert calculator.extra_info["ability"] == "math"
    assert calculator.extra_info["index"] == 7
    # Parquet gives each struct the keys of all rows: the search tool must not appear, empty, in the calculator's row
    assert calculator.tools_kwargs == {"calculator": {"create_kwargs": {"ground_truth": "2"}}}
    assert search.tools_kwargs == {"search": {"execute_kwargs": {"limit": 3}}}
    assert search.interaction_kwargs == {}


@pytest.mark.parametrize("suffix", ["parquet", "json", "jsonl"])
def test_plain_and_unknown_columns_are_read(tmp_path, suffix):
    rows = [{"prompt": "1+1?", "ground_truth": "2", "data_source": "sums", "level": 3}]
    (task,) = load(tmp_path / f"train.{suffix}", rows)
    assert task.messages == [{"role": "user", "content": "1+1?"}]
    assert (task.ground_truth, task.data_source, task.extra_info) == ("2", "sums", {"text_prompt": True, "level": 3})


def test_system_prompt_is_added_to_prompts_without_one(tmp_path):
    own, given = load(tmp_path / "t.jsonl", [CALCULATOR_ROW, {"prompt": "hi"}], system_prompt="Use tools.")
    assert [message["content"] for message in own.messages] == ["Be brief.", "1+1?"]
    assert given.messages == [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "hi"}]


def test_prompt_key_and_answer_column(tmp_path):
    (task,) = load(tmp_path / "t.json", [{"question": "1+1?", "answer": "2"}], prompt_key="question")
    assert task.messages[0]["content"] == "1+1?"
    assert task.ground_truth == "2"
    assert task.extra_info == {"text_prompt": True, "answer": "2"}


def test_files_follow_each_other_and_rows_keep_their_position(tmp_path):
    first = write(tmp_path / "a.jsonl", [{"prompt": f"a{i}"} for i in range(3)])
    second = write(tmp_path / "b.parquet", [{"prompt": f"b{i}"} for i in range(3)])
    tasks = load_tasks([first, second], DataConfig(), max_samples=5)
    assert [task.messages[0]["content"] for task in tasks] == ["a0", "a1", "a2", "b0", "b1"]
    assert [task.index for task in tasks] == [0, 1, 2, 3, 4]
    assert tasks[-1].index == 4
    assert [task.index for task in tasks[3:].keep([1])] == [4]
    assert tasks.where(4) == f"{second} row 1"
    with pytest.raises(IndexError):
        tasks[5]


def test_max_samples_leaves_later_rows_unread(tmp_path):
    path = write(tmp_path / "t.jsonl", [{"prompt": "good"}, {"prompt": 5}])
    assert len(load_tasks([path], DataConfig(), max_samples=1)) == 1


def test_blank_lines_are_skipped_but_count_as_lines(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('\n{"prompt": "a"}\n\n{"prompt": 5}\n')
    with pytest.raises(DataError, match=r"t\.jsonl row 1 \(line 4\): field 'prompt': expected text or a list"):
        load_tasks([str(path)], DataConfig())


def test_json_lines_in_a_json_file_are_read(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}')
    assert [task.messages[0]["content"] for task in load_tasks([str(path)], DataConfig())] == ["a", "b"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"promt": "x"},
            "no field 'prompt', expected text or a list of messages (data.prompt_key); did you mean 'promt'?",
        ),
        ({"prompt": None, "id": 1}, "field 'prompt': expected text or a list of messages (data.prompt_key), got null"),
        ({"prompt": []}, "field 'prompt': expected a list of messages, got an empty one"),
        ({"prompt": " "}, "field 'prompt': expected a prompt, got empty text"),
        ({"prompt": [{"role": "user", "content": ""}]}, "field 'prompt': expected a prompt, got empty text"),
        (
            {"prompt": [{"role": "wizard", "content": "x"}]},
            "field 'prompt[0].role': unknown role 'wizard': valid: assistant, developer, system, tool, user",
        ),
        ({"prompt": [{"content": "x"}]}, "field 'prompt[0].role': expected text, got nothing"),
        ({"prompt": [{"role": "user"}]}, "field 'prompt[0].content': expected text, or a list of parts, got nothing"),
        ({"prompt": ["x"]}, "field 'prompt[0]': expected an object with role and content, got text"),
        ({"prompt": "x", "agent_name": 3}, "field 'agent_name': expected text, got a number"),
        ({"prompt": "x", "data_source": ["y"]}, "field 'data_source': expected text, got a list"),
        ({"prompt": "x", "extra_info": "y"}, "field 'extra_info': not JSON: Expecting value"),
        ({"prompt": "x", "extra_info": "[1]"}, "field 'extra_info': expected an object, got a list"),
        ({"prompt": "x", "extra_info": {"tools_kwargs": 1}}, "field 'extra_info.tools_kwargs': expected an object"),
        ({"prompt": "x", "tools_kwargs": {"calc": 1}}, "field 'tools_kwargs.calc': expected an object such as"),
        ({"prompt": "x", "images": ["a.png"]}, "field 'images': 1 images, but the prompt has 0 placeholders"),
        ({"prompt": "x", "videos": ["a.mp4"]}, "field 'videos': videos and audio are not supported"),
        (["prompt"], 'expected an object such as {"prompt": ...}, got list'),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, expected):
    message = message_of(tmp_path / "t.jsonl", [{"prompt": "good"}, row])
    assert message.startswith(f"{tmp_path}/t.jsonl row 1 (line 2): ")
    assert expected in message


def test_a_bad_row_of_parquet_is_named(tmp_path):
    message = message_of(tmp_path / "t.parquet", [{"prompt": "a"}, {"prompt": None}])
    assert message.startswith(f"{tmp_path}/t.parquet row 1: field 'prompt': expected text or a list")
    assert message.endswith("got null")


def test_files_that_cannot_be_read(tmp_path):
    assert "no rows" in message_of(tmp_path / "empty.jsonl", [])
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and then nothing of the kind")
    (tmp_path / "torn.jsonl").write_text('{"prompt": "a"}\n{"prompt": ')
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "caf\xe9"}\n')
    (tmp_path / "torn.json").write_text('[{"prompt": "a"},')
    for name, expected in {
        "torn.parquet": "not a readable Parquet file",
        "torn.jsonl": "row 1 (line 2): not JSON",
        "latin.jsonl": "row 0 (line 1): not JSON",
        "torn.json": "not JSON",
        "emty.jsonl": "no such file; in its folder: did you mean 'empty.jsonl'?",
        "nowhere/t.jsonl": "there is no folder",
        "t.csv": "expected a file that ends in .parquet, .jsonl, .json",
    }.items():
        with pytest.raises(DataError) as caught:
            load_tasks([str(tmp_path / name)], DataConfig())
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="no files: no rows"):
        load_tasks([], DataConfig())


@pytest.mark.parametrize("suffix", ["parquet", "json", "jsonl"])
def test_column_prompts_is_accepted_as_prompt(tmp_path, suffix):
    (one,) = load(tmp_path / f"text.{suffix}", [{"prompts": "1+1?"}])
    (listed,) = load(tmp_path / f"list.{suffix}", [{"prompts": ["1+1?"]}])
    (chat,) = load(tmp_path / f"chat.{suffix}", [{"prompts": CALCULATOR_ROW["prompt"]}])
    assert one.messages == listed.messages == [{"role": "user", "content": "1+1?"}]
    assert chat.messages == CALCULATOR_ROW["prompt"]
    assert one.extra_info == listed.extra_info == {"text_prompt": True}
    assert chat.extra_info == {}
    (both,) = load(tmp_path / f"both.{suffix}", [{"prompt": "a", "prompts": ["b", "c"]}])
    assert (both.messages[0]["content"], both.extra_info) == ("a", {"text_prompt": True, "prompts": ["b", "c"]})


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_objects_may_be_json_text(tmp_path, suffix):
    calculator, inner = {"calculator": {"create_kwargs": {"x": 1}}}, {"name": "teacher"}
    beside = {"tool_config": {"max_tool_calls": 2}, "tools_kwargs": calculator, "interaction_kwargs": inner}
    model = {"reward_model": {"ground_truth": "2"}}
    rows = [
        {"prompt": "a", "extra_info": "", **{key: json.dumps(value) for key, value in (model | beside).items()}},
        {
            "prompt": "b",
            "extra_info": json.dumps(beside | {"level": 3}),
            "reward_model": json.dumps(model["reward_model"]),
        },
    ]
    tasks = load(tmp_path / f"t.{suffix}", rows)
    for task in tasks:
        assert (task.ground_truth, task.tools_kwargs, task.interaction_kwargs) == ("2", calculator, inner)
        assert task.tool_options == ToolOptions(max_tool_calls=2)
        assert task.extra_info["tool_config"] == {"max_tool_calls": 2}
    assert tasks[1].extra_info["level"] == 3


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_columns_without_a_value_are_omitted(tmp_path, suffix):
    (task,) = load(tmp_path / f"t.{suffix}", [{"prompt": [{"role": "user", "content": "a"}], "level": None}])
    assert task.extra_info == {}


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_test_cases_reach_the_reward(tmp_path, suffix):
    cases = [{"input": "1 1", "output": "2"}]
    rows = [
        {"prompt": "a", "reward_model": {"style": "code", "test_cases": cases}},
        {"prompt": "b", "reward_model": {"ground_truth": "2", "test_cases": cases}},
        {"prompt": "c", "reward_model": {"ground_truth": "2"}},
    ]
    alone, beside, none = load(tmp_path / f"t.{suffix}", rows)
    assert (alone.ground_truth, beside.ground_truth, none.ground_truth) == (cases, "2", "2")
    assert alone.extra_info == beside.extra_info == {"text_prompt": True, "test_cases": cases}
    assert none.extra_info == {"text_prompt": True}


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_rows_tool_options(tmp_path, suffix):
    options = {"available_tools": ["search"], "tool_format": "react", "max_tool_calls": 2, "timeout": 1.5}
    rows = [
        {"prompt": "a", "tool_config": options, "extra_info": None},
        {"prompt": "b", "extra_info": {"tool_config": {"max_tool_calls": 0}}},
        {"prompt": "c", "extra_info": {"tool_selection": ["search", "sum"]}},
        {"prompt": "d"},
    ]
    column, inside, selected, none = (task.tool_options for task in load(tmp_path / f"t.{suffix}", rows))
    assert column == ToolOptions(**options)
    assert inside == ToolOptions(max_tool_calls=0)
    assert selected == ToolOptions(available_tools=("search", "sum"))
    assert none is AS_CONFIGURED


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"tool_config": {"avaliable_tools": ["x"]}}, "unknown key 'avaliable_tools': did you mean 'available_tools'?"),
        ({"tool_config": '{"max_tool_calls": -1}'}, "'tool_config.max_tool_calls': expected a whole number, 0 or more"),
        ({"tool_config": ["search"]}, "field 'tool_config': expected an object, got ['search']"),
        ({"tool_config": {"max_tool_calls": -1}}, "'tool_config.max_tool_calls': expected a whole number, 0 or more"),
        ({"tool_config": {"timeout": 0}}, "field 'tool_config.timeout': expected seconds above 0, got 0"),
        ({"tool_config": {"tool_format": 5}}, "field 'tool_config.tool_format': expected text, got 5"),
        ({"tool_config": {"available_tools": 5}}, "'tool_config.available_tools': expected a list of tool names"),
        ({"tool_selection": 5}, "field 'tool_selection': expected a list of tool names, got 5"),
        ({"tool_config": {"available_tools": ["a"]}, "tool_selection": ["b"]}, "name different tools"),
        ({"prompt": None, "prompts": ["a", "b"]}, "field 'prompts': expected one prompt per row, got 2"),
        ({"prompt": [{"role": "user", "content": [{"type": "video"}]}]}, "'prompt[0].content': a part of type 'video'"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "0 images, but the prompt has 1 placeholders"),
        ({"audios": ["a.wav"]}, "field 'audios': videos and audio are not supported"),
    ],
)
def test_columns_of_derived_datasets_are_checked(tmp_path, row, expected):
    message = message_of(tmp_path / "t.jsonl", [{"prompt": "good"}, {"prompt": "x"} | row])
    assert message.startswith(f"{tmp_path}/t.jsonl row 1 (line 2): ")
    assert expected in message


def test_rows_are_counted_per_file(tmp_path):
    files = [write(tmp_path / f"{name}.jsonl", [{"prompt": name}] * 3) for name in "abc"]
    tasks = load_tasks(files, DataConfig(), max_samples=7)
    assert tasks.file_sizes == [3, 3, 1]
    assert tasks.keep([0, 5, 6]).file_sizes == [1, 1, 1]


def test_rows_that_were_replaced_keep_their_place(tmp_path):
    tasks = load(tmp_path / "t.jsonl", [{"prompt": str(i)} for i in range(4)]).keep([1, 2, 3])
    replaced = tasks.replace({1: tasks[0]})
    assert [task.messages[0]["content"] for task in replaced] == ["1", "1", "3"]
    assert replaced.where(1) == tasks.where(1)
    assert replaced.keep([1])[0] is replaced[1]


def answer_for_the_hub(monkeypatch, load_dataset, configs=("main", "socratic")):
    """Replaces the functions that contact the hub, which need a network."""
    monkeypatch.setattr(data_hub, "check_hub_dataset", lambda name: None)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda path: list(configs))


def test_dataset_is_loaded_by_name(monkeypatch):
    asked = []

    def load_dataset(path, config, split):
        asked.append((path, config, split))
        return datasets.Dataset.from_list([{"question": "1+1?", "answer": "#### 2"}])

    answer_for_the_hub(monkeypatch, load_dataset)
    config = DataConfig(prompt_key="question")
    (task,) = load_tasks(["openai/gsm8k:test"], config)
    load_tasks(["openai/gsm8k/socratic"], config)
    assert asked == [("openai/gsm8k", "main", "test"), ("openai/gsm8k", "socratic", "train")]
    assert (task.data_source, task.ground_truth) == ("openai/gsm8k", "#### 2")


def test_unavailable_dataset_is_refused(monkeypatch):
    def load_dataset(path, config, split):
        raise ConnectionError("Couldn't reach the Hub\nwith a long story")

    answer_for_the_hub(monkeypatch, load_dataset)
    with pytest.raises(DataError) as caught:
        load_tasks(["openai/gsm8k:train"], DataConfig())
    assert str(caught.value) == "openai/gsm8k: cannot load split 'train' of this dataset: Couldn't reach the Hub"
    answer_for_the_hub(monkeypatch, load_dataset, configs=("a", "b"))
    with pytest.raises(DataError, match="choose one of its configurations: o/d/a, o/d/b"):
        load_tasks(["o/d"], DataConfig())
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'agentrl-train\[datasets\]'"):
        load_tasks(["o/d"], DataConfig())


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_variables_of_the_chat_template(tmp_path, suffix):
    rows = [
        {"prompt": "a", "chat_template_kwargs": {"enable_thinking": False}, "extra_info": None},
        {"prompt": "b", "extra_info": {"chat_template_kwargs": {"effort": "low"}}},
        {"prompt": "c", "chat_template_kwargs": {"effort": "high"}},  # in Parquet with a null for the other key
        {"prompt": "d"},
    ]
    found = [task.template_variables for task in load(tmp_path / f"t.{suffix}", rows)]
    assert found == [{"enable_thinking": False}, {"effort": "low"}, {"effort": "high"}, {}]
    (text,) = load(tmp_path / f"u.{suffix}", [{"prompt": "a", "chat_template_kwargs": '{"effort": 1}'}])
    assert text.template_variables == {"effort": 1}
    bad = [{"prompt": "a", "chat_template_kwargs": None}, {"prompt": "a", "chat_template_kwargs": {"effort": [1]}}]
    with pytest.raises(DataError, match=r"row 1.*field 'chat_template_kwargs.effort': expected text, a number"):
        load(tmp_path / f"v.{suffix}", bad)
