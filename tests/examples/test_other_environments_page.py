"""docs/other_environments.md: its files can be read, its commands are valid, and its tables are those of the code."""

from __future__ import annotations

import inspect
import json
import re
import shlex

import pytest
import yaml
from fake_nemo_gym import fake_nemo_gym
from fake_openenv import fake_openenv
from reader import ROOT, blocks_of

from agentrl.cli.compose import compose_config
from agentrl.data.tasks import load_tasks, read_task
from agentrl.harness.function import load_function
from agentrl.harness.settings import read_harness
from agentrl.harness.verifiers import Taskset
from agentrl.tools.environment_servers import base, bound
from agentrl.tools.environment_servers.options import NemoGymOptions, OpenEnvOptions, read_options
from agentrl.tools.toolbox import load_toolbox

PAGE = ROOT / "docs/other_environments.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples/environment_servers"


def commands():
    texts = [block.text.replace("\\\n", " ") for block in blocks_of(PAGE) if block.language == "text"]
    return [shlex.split(text)[2:] for text in texts if text.startswith("agentrl train")]


def test_files_of_the_page_are_read(tmp_path):
    (tmp_path / "counter.jsonl").write_text("")
    for block in blocks_of(PAGE):
        if block.language == "yaml" and block.file != "sums.yaml":
            (tmp_path / block.file).write_text(block.text)
    assert read_options(f"{tmp_path}/guess.yaml") == OpenEnvOptions(
        openenv="http://127.0.0.1:8000", max_sessions=16, observation="message", reward="last", reset=("low",)
    )
    assert read_options(f"{tmp_path}/counter.yaml").tools == tmp_path / "counter.jsonl"


def test_the_row_of_the_page_is_a_task():
    (text,) = [block.text for block in blocks_of(PAGE) if block.language == "json"]
    (command,) = [words for words in commands() if "counter" in words[1]]
    task = read_task(compose_config(command).data, json.loads(text), 0)
    assert task.messages == [{"role": "user", "content": "Bring the counter to 6."}]


@pytest.mark.parametrize(("number", "server", "tools"), [(0, fake_openenv, ["step"]), (1, fake_nemo_gym, None)])
def test_commands_of_the_page_work_with_a_server(number, server, tools, tmp_path, monkeypatch):
    """The command is composed, the server reached, and every row checked."""
    monkeypatch.chdir(ROOT)
    config = compose_config(commands()[number])
    with server() as (url, _):
        given = str(config.rollout.multi_turn.environment)
        if given.endswith(".yaml"):
            content = yaml.safe_load((ROOT / given).read_text())
            content = {**content, "nemo_gym": url, "tools": str(EXAMPLE / content["tools"])}
            (tmp_path / "counter.yaml").write_text(json.dumps(content))
            environment = f"{tmp_path}/counter.yaml"
        else:
            environment = given.replace("http://127.0.0.1:8000", url)
        box = load_toolbox(config.rollout.multi_turn.model_copy(update={"environment": environment}))
    assert [schema.name for schema in box.schemas] == (tools or ["increment_counter", "get_counter_value"])
    tasks = load_tasks(config.data.train_files, config.data)
    assert len(tasks) == 16
    for index in range(16):
        box.check(tasks[index])


def test_the_table_of_tasksets_names_every_argument():
    arguments = inspect.signature(Taskset).parameters
    assert column("## verifiers", "## Failures") == arguments.keys()
    assert f"| `start_timeout_s` | {arguments['start_timeout_s'].default:g} |" in TEXT


def test_the_harness_of_the_page_is_read(tmp_path):
    (tmp_path / "sums.yaml").write_text(next(block.text for block in blocks_of(PAGE) if block.file == "sums.yaml"))
    code = next(block.text for block in blocks_of(PAGE) if block.file == "sums.py")
    (tmp_path / "sums.py").write_text(code)
    harness = read_harness(str(tmp_path / "sums.yaml"))
    assert harness.settings.max_running == 16
    assert load_function(harness).__self__.__class__ is Taskset


def column(after, before):
    """The names in the first column of the table between two texts."""
    section = TEXT.partition(after)[2].partition(before)[0]
    rows = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w/]+)`", row)}


def test_tables_name_every_key():
    assert column("# guess.yaml", "## NeMo-Gym") == OpenEnvOptions.model_fields.keys()
    assert column("# counter.yaml", "## verifiers") == NemoGymOptions.model_fields.keys()


def test_limits_are_those_of_the_code():
    assert f"at most {base.MAX_ANSWER_BYTES // 2**20} MiB" in TEXT
    assert f"up to {base.NUM_TRIES} tries" in TEXT
    assert f"waits up to {bound.WAIT_S:g} seconds" in TEXT
    assert f"| `max_sessions` | {NemoGymOptions.model_fields['max_sessions'].default} |" in TEXT
    assert f"| `verify_timeout_s` | {NemoGymOptions.model_fields['verify_timeout_s'].default:g} |" in TEXT
