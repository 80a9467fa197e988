"""A run with a rule and a judge as reward: its saved scores, and its rollouts on which the judge fails."""

from __future__ import annotations

import json
import shutil

import pytest
from judge_server import JudgeServer, Reply, serving

from agentrl.cli.main import main
from agentrl.store import TrajectoryStore

SCRIPT = """
from itertools import count
TURNS = count()

def reply(context):
    return f"The answer is {next(TURNS)}"
"""
COMPONENTS = "{right: {reward: exact_match}, style: {reward: judge, weight: 0.5}}"


@pytest.fixture
def run(tmp_path, task_folder):
    """Trains one step with that judge and further keys; returns (exit status, folder)."""

    def run(server, **keys):
        (tmp_path / "script.py").write_text(SCRIPT)
        shutil.copytree(task_folder / "model", tmp_path / "model")
        given = {
            "model.path": f"{tmp_path}/model",
            "data.train_files": f"[{task_folder}/train.jsonl]",
            "data.train_max_samples": 4,
            "data.train_batch_size": 4,
            "data.max_prompt_length": 64,
            "data.max_response_length": 64,
            "rollout.n": 4,
            "rollout.engine": "scripted",
            "rollout.script_path": f"{tmp_path}/script.py:reply",
            "reward.components": COMPONENTS,
            "reward.judge.url": server.url,
            "reward.judge.model": "j",
            "reward.judge.api_key_env": "JUDGE_KEY",
            "trainer.default_local_dir": f"{tmp_path}/run",
            "trainer.total_training_steps": 1,
            "trainer.logger": "[jsonl]",
        } | keys
        return main(["train", *(f"{key}={value}" for key, value in given.items())]), tmp_path / "run"

    return run


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")


def graded(body):
    return Reply('{"reason": "", "score": 5}')


@pytest.mark.slow
def test_every_part_of_the_reward_is_kept_and_no_key(run, capsys):
    with serving(JudgeServer(otherwise=graded)) as server:
        status, folder = run(server)
    assert status == 0, capsys.readouterr().err
    kept = [row.rollout.rewards for row in TrajectoryStore(folder / "trajectories/train").scan()]
    assert len(kept) == 16
    for rewards in kept:
        assert rewards["score"] == rewards["right"] + 0.5 * rewards["style"]
        assert rewards["style/verdict/score"] == 5
    (metrics,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert (metrics["reward/style"], metrics["reward/guard/grader_injection"]) == (0.5, 0)
    for file in (path for path in folder.rglob("*") if path.is_file()):
        assert b"very-secret" not in file.read_bytes(), file
    assert "api_key_env: JUDGE_KEY" in (folder / "config.yaml").read_text()


@pytest.mark.slow
def test_judge_failures_are_excluded_and_not_scored_0(run):
    down = Reply(status=400, raw=b"too long")

    def some(body):
        return down if " 7\n" in body["messages"][-1]["content"] else graded(body)

    with serving(JudgeServer([graded(None)], some)) as server:
        status, folder = run(server, **{"reward.judge.max_concurrent": 1})
    assert status == 0
    rows = [row.rollout for row in TrajectoryStore(folder / "trajectories/train").scan()]
    (failed,) = [rollout for rollout in rows if rollout.infra_failed]
    assert failed.rewards == {}
    assert failed.error.startswith("reward: component 'style': judge (data source 'calculator', row ")
    assert failed.error.endswith("status 400: too long")


@pytest.mark.slow
def test_judge_unreachable_from_the_start_ends_the_run_with_one_line(run, capsys):
    with serving(JudgeServer(otherwise=lambda body: Reply(status=503, raw=b"starting"))) as server:
        status, _ = run(server, **{"reward.judge.max_retries": 0})
    assert status == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "all 16 rollouts failed; the first: reward: component 'style': judge" in said
    assert "status 503: starting" in said
