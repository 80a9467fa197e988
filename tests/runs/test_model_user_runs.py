"""Runs with a user that a model plays: an endpoint whose answers are replayed, and the run's own engine."""

from __future__ import annotations

import json
import shutil

import pytest
from judge_server import JudgeServer, Reply, serving
from replayed_runs import replayed

from agentrl.cli.main import main
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Stop
from agentrl.types.trajectory import Author

pytestmark = pytest.mark.slow

SCRIPT = """
def reply(context):
    return f"The answer is {len(context) % 7}"
"""
USERS = "interaction: [{name: model_user, config: {url: '%s', model: m, score: ask}}]"


def reply(body):
    if "Reply with one number" in body["messages"][-1]["content"]:
        return Reply(str(len(json.dumps(body)) % 10))
    return Reply("[END]" if len(body["messages"]) > 7 else f"Are you sure, {len(body['messages'])}?")


def test_answers_are_recorded_audited_and_replayed_without_a_request(task_folder, tmp_path, capsys):
    shutil.copytree(task_folder / "model", tmp_path / "model")
    (tmp_path / "script.py").write_text(SCRIPT)
    keys = [
        f"model.path={tmp_path}/model",
        "rollout.engine=scripted",
        f"rollout.script_path={tmp_path}/script.py:reply",
        f"rollout.multi_turn.interaction_config_path={tmp_path}/users.yaml",
    ]
    given = [
        *(f"data.train_files=[{task_folder}/train.jsonl]", "data.train_max_samples=4", "data.train_batch_size=4"),
        *("data.max_prompt_length=64", "data.max_response_length=192", "rollout.n=2", "reward.name=exact_match"),
        *("trainer.total_training_steps=1", f"trainer.default_local_dir={tmp_path}/run", "trainer.logger=[jsonl]"),
        "algorithm.name=grpo_turn",
    ]
    with serving(JudgeServer(otherwise=reply)) as server:
        (tmp_path / "users.yaml").write_text(USERS % server.url)
        assert main(["train", *keys, *given]) == 0
        num_requests = len(server.bodies)
        capsys.readouterr()
        words = [f"{tmp_path}/run", "tools", "--unrecorded", "error", *keys, "--reward", "exact_match"]
        (result,) = replayed(capsys, *words, "--out", tmp_path)["results"]
        assert num_requests == len(server.bodies) > 8
    assert (result["values"]["num_same"], result["failed"]) == (8, False)
    stored = list(TrajectoryStore(tmp_path / "run/trajectories/train").scan())
    assert {each.rollout.stop for each in stored} == {Stop.INTERACTION_ENDED}
    assert all(len(each.rollout.turn_rewards) == 3 for each in stored)
    (audited,) = replayed(capsys, f"{tmp_path}/run", "audit")["results"]
    assert not audited["failed"]
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert "simulated users not marked deterministic: model_user" in environment["reproducible"]["why_not"]


PLAYS_BOTH = """
def reply(context):
    if "You play a user" not in context:
        return f"The answer is {len(context) % 7}"
    return "[END]" if context.count("Are you sure?") == 2 else "Are you sure?"
"""


def test_the_policy_plays_the_user_of_a_run(task_folder, tmp_path, capsys):
    (tmp_path / "script.py").write_text(PLAYS_BOTH)
    (tmp_path / "users.yaml").write_text("interaction: [{name: model_user, config: {engine: policy}}]")
    given = [
        *(
            f"model.path={task_folder}/model",
            f"data.train_files=[{task_folder}/train.jsonl]",
            "reward.name=exact_match",
        ),
        *("data.train_max_samples=4", "data.train_batch_size=4", "data.max_response_length=256", "rollout.n=2"),
        *("rollout.engine=scripted", f"rollout.script_path={tmp_path}/script.py:reply"),
        *("trainer.total_training_steps=1", f"trainer.default_local_dir={tmp_path}/run", "trainer.logger=[jsonl]"),
        f"rollout.multi_turn.interaction_config_path={tmp_path}/users.yaml",
    ]
    assert main(["train", *given]) == 0
    capsys.readouterr()
    stored = [each.rollout for each in TrajectoryStore(tmp_path / "run/trajectories/train").scan()]
    assert [rollout.stop for rollout in stored] == [Stop.INTERACTION_ENDED] * 8
    for rollout in stored:
        authors = [segment.author for segment in rollout.trajectories[0].segments]
        assert authors == [Author.PROMPT, Author.MODEL, *[Author.USER, Author.MODEL] * 2]
    (audited,) = replayed(capsys, f"{tmp_path}/run", "audit")["results"]
    assert not audited["failed"]
    assert json.loads((tmp_path / "run/environment.json").read_text())["reproducible"]["promised"]
