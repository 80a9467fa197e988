"""Runs on servers with the protocols of OpenEnv and NeMo-Gym: trained on, audited, replayed without a server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_nemo_gym import fake_nemo_gym
from fake_openenv import LOST, fake_openenv
from peer_environments import peer_python, running_server
from replayed_runs import refused, replayed, stored

from agentrl.audit.auditor import Auditor
from agentrl.cli.main import main
from agentrl.types.rollout import Outcome, Stop

EXAMPLE = Path(__file__).parents[2] / "examples/environment_servers"
SCRIPT = """
import itertools
import json
from zlib import crc32

def call(name, **arguments):
    return '<tool_call>' + json.dumps({"name": name, "arguments": arguments}) + '</tool_call>'

def guess(context):
    number = crc32(context.encode())
    kinds = [call("step", guess=number % 9 + 1), call("step", guess="x"), call("step", guess=-1), "Done."]
    return kinds[number % 97 % 5 % 4]

TURNS = itertools.count()

def count(context):
    turn = next(TURNS)
    adds = call("increment_counter", count=turn % 5 - 1)
    return [adds, call("increment_counter", count=1), "Done.", call("get_counter_value")][turn % 7 % 4]
"""


def train(task_folder, folder, rows, environment, reply, *overrides) -> Path:
    (folder / "script.py").write_text(SCRIPT)
    shutil.copytree(task_folder / "model", folder / "model")
    keys = {
        "model.path": f"{folder}/model",
        "data.train_files": rows,
        "data.train_batch_size": 8,
        "data.max_prompt_length": 400,
        "data.max_response_length": 600,
        "rollout.n": 4,
        "rollout.engine": "scripted",
        "rollout.script_path": f"{folder}/script.py:{reply}",
        "rollout.multi_turn.environment": environment,
        "rollout.multi_turn.max_assistant_turns": 5,
        "reward.name": "tool_rewards",
        "trainer.default_local_dir": f"{folder}/run",
        "trainer.total_training_steps": 2,
        "trainer.logger": "[jsonl]",
    }
    assert main(["train", *(f"{key}={value}" for key, value in keys.items()), *overrides]) == 0
    return folder / "run"


def problems(run: Path) -> set[str]:
    ledger = Auditor(folder=run).audit(sorted(run.rglob("*.parquet")), complete=False)
    assert ledger.findings["messages"].num_checked
    return {name for name, finding in ledger.findings.items() if finding.num_problems}


@pytest.mark.slow
def test_a_run_on_openenv(task_folder, tmp_path):
    (tmp_path / "guess.yaml").write_text("openenv: ${oc.env:GUESS_URL}\nmax_sessions: 16\nobservation: message\n")
    with fake_openenv() as (url, server), pytest.MonkeyPatch.context() as patch:
        patch.setenv("GUESS_URL", url)
        run = train(task_folder, tmp_path, EXAMPLE / "guess.jsonl", f"{tmp_path}/guess.yaml", "guess")
    rollouts = [each.rollout for each in stored(run)]
    assert len(rollouts) == 2 * 8 * 4
    assert {Stop.ENVIRONMENT_DONE, Stop.FINISHED} <= {rollout.stop for rollout in rollouts}
    assert {each.outcome for rollout in rollouts for each in rollout.tool_calls} >= {Outcome.OK, Outcome.TOOL_ERROR}
    for rollout in rollouts:
        assert rollout.tool_rewards == {"guess": pytest.approx(sum(each.reward for each in rollout.tool_calls))}
        assert rollout.reward == pytest.approx(rollout.tool_rewards["guess"])
    assert 1 < server.most_active <= 16
    assert problems(run) == set()


@pytest.mark.slow
def test_a_run_on_nemo_gym(task_folder, tmp_path):
    shutil.copy(EXAMPLE / "counter.jsonl", tmp_path)
    with fake_nemo_gym() as (url, server):
        (tmp_path / "counter.yaml").write_text(f"nemo_gym: {url}\ntools: counter.jsonl\n")
        run = train(task_folder, tmp_path, tmp_path / "counter.jsonl", f"{tmp_path}/counter.yaml", "count")
    rollouts = [each.rollout for each in stored(run)]
    assert len(server.counters) == len(server.bodies("/verify")) == len(rollouts) == 2 * 8 * 4
    assert {0.0, 1.0} == {rollout.reward for rollout in rollouts}
    by_calls = [len(body["response"]["output"]) for body in server.bodies("/verify")]
    assert max(by_calls) > 3
    assert problems(run) == set()


@pytest.mark.slow
def test_a_server_that_loses_connections_costs_rollouts_and_not_the_run(task_folder, tmp_path):
    answers = [LOST if number % 20 == 7 else None for number in range(400)]
    with fake_openenv(answers=answers) as (url, _):
        run = train(task_folder, tmp_path, EXAMPLE / "guess.jsonl", f"openenv:{url}", "guess")
    dropped = [each.rollout for each in stored(run) if each.rollout.infra_failed]
    assert 0 < len(dropped) < 20
    assert all("the server closed the connection" in rollout.error for rollout in dropped)
    assert problems(run) == set()


@pytest.mark.slow
def test_rollouts_are_replayed_without_the_server(task_folder, tmp_path, capsys):
    with fake_openenv() as (url, _):
        run = train(task_folder, tmp_path, EXAMPLE / "guess.jsonl", f"openenv:{url}", "guess")
    capsys.readouterr()
    code = [
        "rollout.engine=scripted",
        f"rollout.script_path={tmp_path}/script.py:guess",
        f"model.path={tmp_path}/model",
    ]
    (result,) = replayed(capsys, run, "tools", *code, "--out", tmp_path / "again")["results"]
    assert result["values"]["num_same"] == result["values"]["num_rollouts"] == 2 * 8 * 4
    assert problems(tmp_path / "again") == set()
    assert f"rollout.multi_turn.environment=openenv:{url}" in refused(
        capsys, run, "tools", *code, "--unrecorded", "live", "--out", tmp_path / "live"
    )


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("package", "kind", "reply"), [("openenv", "guess", "guess"), ("nemo-gym", "counter", "count")]
)
def test_a_run_on_a_server_of_the_real_package(package, kind, reply, task_folder, tmp_path):
    command = [peer_python(package), EXAMPLE / f"{kind}_server.py", "PORT", *([16] if kind == "guess" else [])]
    shutil.copy(EXAMPLE / "counter.jsonl", tmp_path)
    with running_server(command, "/openapi.json", tmp_path) as url:
        keys = f"openenv: {url}\nmax_sessions: 16\n" if kind == "guess" else f"nemo_gym: {url}\ntools: counter.jsonl\n"
        (tmp_path / "world.yaml").write_text(keys)
        run = train(task_folder, tmp_path, EXAMPLE / f"{kind}.jsonl", f"{tmp_path}/world.yaml", reply)
    rollouts = [each.rollout for each in stored(run)]
    assert len(rollouts) == 2 * 8 * 4
    assert [rollout.error for rollout in rollouts] == [None] * 64
    assert len({rollout.reward for rollout in rollouts}) > 1
    assert problems(run) == set()
