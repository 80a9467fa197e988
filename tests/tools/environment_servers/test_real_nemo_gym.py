"""The package nemo-gym: its server answers as the fake one."""

from __future__ import annotations

import shutil

import pytest
from fake_nemo_gym import fake_nemo_gym, row, rows_file
from peer_environments import ROOT, peer_python, running_server
from server_builders import play, target
from tool_builders import call

from agentrl.config.data import DataConfig
from agentrl.data.tasks import load_tasks, read_task
from agentrl.errors import DataError

pytestmark = pytest.mark.slow
EXAMPLES = ROOT / "examples/environment_servers"


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    command = [peer_python("nemo-gym"), EXAMPLES / "counter_server.py", "PORT"]
    with running_server(command, "/openapi.json", tmp_path_factory.mktemp("nemo")) as url:
        yield url


CALLS = [call("increment_counter", count=1), call("increment_counter", count=-1), call("get_counter_value")]


def played(url, folder, *calls, **options):
    file = rows_file(folder / "rows.jsonl")
    return play(target(folder, nemo_gym=url, tools=str(file)), *calls, row=read_task(DataConfig(), row(), 0), **options)


def test_the_fake_server_answers_as_the_real_one(real, tmp_path):
    for calls in (CALLS, [*CALLS, call("increment_counter", count=2)], []):
        ours = played(real, tmp_path, *calls, said="done")
        with fake_nemo_gym() as (url, _):
            fake = played(url, tmp_path, *calls, said="done")
        assert (ours.outcomes, ours.rewards) == (fake.outcomes, fake.rewards)
    assert ours.rewards == {"world": 0.0}


def test_rows_of_the_example_are_verified(real, tmp_path):
    shutil.copy(EXAMPLES / "counter.jsonl", tmp_path)
    text = (EXAMPLES / "counter.yaml").read_text()
    (tmp_path / "counter.yaml").write_text(text.replace("http://127.0.0.1:8000", real))
    tasks = load_tasks([str(EXAMPLES / "counter.jsonl")], DataConfig())
    for index in range(3):
        info = tasks[index].extra_info
        add = call("increment_counter", count=info["expected_count"] - info["initial_count"])
        assert play(f"{tmp_path}/counter.yaml", add, row=tasks[index], said="done").rewards == {"counter": 1.0}


def test_a_row_that_the_server_refuses(real):
    bad = {name: value for name, value in row(tools=None).items() if name != "initial_count"}
    with pytest.raises(DataError, match="/seed_session answers 422"):
        play(f"nemo_gym:{real}", row=read_task(DataConfig(), bad, 0))
