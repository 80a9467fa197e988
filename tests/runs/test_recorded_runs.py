"""Conversations recorded with the embedded engine: audited, viewed, exported and trained on."""

from __future__ import annotations

import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gateway_process import ask, started
from safetensors.torch import load_file
from warm_agentrl import agentrl

from agentrl.store import TrajectoryStore
from agentrl.telemetry.jsonl import read_metrics

pytestmark = pytest.mark.slow

ADD = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Compute.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}


def converse(url: str, key: str, question: str, num_turns: int) -> None:
    """Talk as an agent with a tool does: the answer to each call is `12`."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for _ in range(num_turns):
        body = {"model": "m", "messages": messages, "tools": [ADD]}
        answer = ask(f"{url}/v1/chat/completions", body, key)["choices"][0]["message"]
        messages.append(answer)
        calls = answer.get("tool_calls") or []
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "12"} for call in calls]
        messages += [] if calls else [{"role": "user", "content": "Are you sure?"}]


def run(*words: str, folder: Path) -> str:
    done = subprocess.run([*agentrl(), *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def recorded(task_folder, tmp_path_factory) -> Path:
    """A folder with the run `recorded`: eight groups of two rollouts of a model of random weights, four at a time."""
    folder = tmp_path_factory.mktemp("recorded")
    words = ["--model", f"{task_folder}/model", "rollout.n=2", "data.train_batch_size=4", "rollout.temperature=0.7"]
    words += ["rollout.multi_turn.max_turn_tokens=24", "rollout.deterministic=true"]
    with started(folder, *words, "trainer.default_local_dir=recorded") as (process, variables):
        url, admin = variables["AGENTRL_GATEWAY"], variables["AGENTRL_ADMIN_KEY"]
        opening = threading.Lock()

        def roll_out(number: int) -> None:
            with opening:
                opened = ask(f"{url}/rollouts", {"data_source": "sums", "ground_truth": str(number)}, admin)
            for at, rollout in enumerate(opened["rollouts"]):
                converse(url, rollout["key"], f"What is {number}+{number}?", num_turns=3)
                ask(f"{url}/rollouts/{rollout['key']}/end", {"reward": at}, admin)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(roll_out, range(8)))
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    return folder


def test_recorded_conversations_pass_the_audit(recorded):
    stored = list(TrajectoryStore(recorded / "recorded/trajectories/train").scan())
    assert len(stored) == 16
    assert {one.step for one in stored} == {1, 2}
    assert all(one.rollout.valid and len(one.rollout.trajectories) == 1 for one in stored)
    assert all(trajectory.num_turns == 3 for one in stored for trajectory in one.rollout.trajectories)
    audit = run("replay", "recorded", "audit", folder=recorded)
    assert "16 rollouts" in audit
    assert "failed" not in audit


def test_recorded_conversations_are_trained_on_as_those_of_a_run(recorded, task_folder):
    words = [f"model.path={task_folder}/model", "rollout.temperature=0.7", "trainer.logger=[jsonl]"]
    saved = ["trainer.mode=train_only", "trainer.saved_rollouts=recorded"]
    run("train", *saved, *words, "rollout.n=2", "trainer.default_local_dir=trained", folder=recorded)
    first, second = [row for row in read_metrics(recorded / "trained/metrics.jsonl") if row["step"]]
    assert (first["reward/mean"], second["reward/mean"]) == (0.5, 0.5)
    assert first["mismatch/max"] < 1e-4  # the log-probabilities are those of the model that is trained
    assert first["actor/grad_norm"] > 0


def test_recorded_conversations_become_pairs_dialogues_and_traces_that_are_trained_on(recorded, task_folder):
    pairs = run("export-rollouts", "recorded", "pairs.jsonl", "--format", "pairs", folder=recorded)
    assert "exported 8 rows" in pairs
    run("export-rollouts", "recorded", "traces.jsonl", "--format", "openenv", folder=recorded)
    run("import-rollouts", "traces.jsonl", "traces", folder=recorded)
    words = [f"model.path={task_folder}/model", "trainer.logger=[jsonl]", "trainer.total_training_steps=1"]
    saved = ["trainer.mode=train_only", "trainer.saved_rollouts=traces", "rollout.temperature=0.7", "rollout.n=2"]
    run("train", *saved, *words, "trainer.default_local_dir=on_traces", folder=recorded)
    run("train", *saved[:1], "trainer.saved_rollouts=recorded", *saved[2:], *words, "trainer.default_local_dir=on_run",
        folder=recorded)  # fmt: skip
    rows = [list(read_metrics(recorded / name / "metrics.jsonl"))[-1] for name in ("on_traces", "on_run")]
    assert rows[0]["actor/grad_norm"] == rows[1]["actor/grad_norm"] > 0


def trained(recorded: Path, task_folder: Path, name: str, *words: str) -> list[dict[str, Any]]:
    """The metrics of two steps, which changed the weights."""
    own = [f"model.path={task_folder}/model", "trainer.logger=[jsonl]", "actor.optim.lr=1e-3"]
    run("train", *own, *words, f"trainer.default_local_dir={name}", folder=recorded)
    before, after = (load_file(path / "model.safetensors") for path in
                     (task_folder / "model", recorded / name / "checkpoints/latest"))  # fmt: skip
    assert not all(weight.equal(after[key]) for key, weight in before.items())
    return [row for row in read_metrics(recorded / name / "metrics.jsonl") if row["step"]]


def test_recorded_conversations_with_a_good_reward_are_imitated(recorded, task_folder):
    saved = ["trainer.mode=train_only", "trainer.saved_rollouts=recorded", "rollout.temperature=0.7", "rollout.n=2"]
    words = ["algorithm.name=rft", "algorithm.rft_threshold=0.5"]
    first, second = trained(recorded, task_folder, "rft", *saved, *words)
    assert (first["kept/samples"], second["kept/samples"]) == (0.5, 0.5)
    assert first["mismatch/max"] < 1e-4  # exactly the tokens that were sampled
    assert first["actor/grad_norm"] > 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", ["tokens", "pairs"])
def test_recorded_conversations_are_preferred(how, recorded, task_folder):
    words = ["algorithm.name=dpo", "trainer.total_training_steps=2"]
    if how == "pairs":
        run("export-rollouts", "recorded", "of_dpo.jsonl", "--format", "pairs", folder=recorded)
        words += ["data.train_files=[of_dpo.jsonl]", "data.train_batch_size=8"]
    else:
        words += ["trainer.mode=train_only", "trainer.saved_rollouts=recorded", "rollout.n=2"]
    first, second = trained(recorded, task_folder, f"dpo_{how}", *words)
    assert first["actor/margin"] == pytest.approx(0, abs=1e-5)  # the policy is its reference
    assert first["actor/grad_norm"] > 0
    if how == "pairs":  # the second step is on the same pairs
        assert second["actor/margin"] > 1
        assert second["actor/accuracy"] == 1
    else:
        assert abs(second["actor/margin"]) > 1e-4
