"""Complete calculator runs on real SGLang servers: on-policy, with staleness, and with a killed server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from recording_builders import QUESTION, served
from sglang_server import require_sglang, save_tiny_model, serving

from agentrl.cli.main import main
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Group

pytestmark = [pytest.mark.slow, pytest.mark.sglang, pytest.mark.minutes]

ROOT = Path(__file__).parents[2]
NUM_STEPS, NUM_GROUPS, GROUP_SIZE = 4, 4, 2
MOST_APART = 1e-4
"""Log-probabilities of the same weights in float32, by server and trainer; the measured difference is 5e-6."""


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # the experiment's paths are relative to ROOT


@pytest.fixture(scope="module")
def attached(task_folder, tmp_path_factory):
    """A server for the runs that need a single one, with the initial weights of the runs."""
    with serving(task_folder / "model", tmp_path_factory.mktemp("attached") / "server.log") as server:
        yield server


def train(task_folder: Path, run: Path, *overrides: str) -> None:
    given = {
        "model.path": task_folder / "model",
        "data.train_files": task_folder / "train.jsonl",
        "data.train_max_samples": 64,  # the length of every prompt is computed at the start
        "data.val_files": task_folder / "val.jsonl",
        "data.val_max_samples": 2,
        "data.train_batch_size": NUM_GROUPS,
        "rollout.engine": "sglang",
        "rollout.n": GROUP_SIZE,
        "trainer.total_training_steps": NUM_STEPS,
        "trainer.test_freq": 2,
        "trainer.stop_when": "null",
        "trainer.logger": "[jsonl]",
        "trainer.default_local_dir": run,
    }
    options = [f"{key}={value}" for key, value in given.items()]
    assert main(["train", "+experiment=calculator", *options, *overrides]) == 0


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def stored(run: Path) -> dict[int, list[Group]]:
    store = TrajectoryStore(run / "trajectories/train")
    return {step: store.groups(step) for step in store.steps}


def check_counts(run: Path) -> None:
    """Every step has all groups, every group all rollouts, each started once; the audit passes."""
    steps = stored(run)
    assert list(steps) == list(range(1, NUM_STEPS + 1))
    groups = [group for step in steps.values() for group in step]
    assert {len(step) for step in steps.values()} == {NUM_GROUPS}
    assert {len(group.rollouts) for group in groups} == {GROUP_SIZE}
    assert max(Counter(group.uid for group in groups).values()) == 1
    assert max(Counter(group.task.index for group in groups).values()) == 1  # no row twice within an epoch
    assert max(Counter(rollout.seed for group in groups for rollout in group.rollouts).values()) == 1
    assert not any(rollout.failed for group in groups for rollout in group.rollouts)
    assert main(["replay", str(run), "audit"]) == 0


def versions(run: Path) -> dict[int, set[int]]:
    """Step -> the policy versions that sampled its rollouts."""
    return {
        step: {version for group in groups for rollout in group.rollouts for version in rollout.policy_versions}
        for step, groups in stored(run).items()
    }


def test_run_on_policy_has_no_mismatch(task_folder, tmp_path, attached):
    train(task_folder, tmp_path, f"rollout.sglang.urls=[{attached.url}]")
    check_counts(tmp_path)
    assert versions(tmp_path) == {step: {step - 1} for step in range(1, NUM_STEPS + 1)}
    for row in metrics(tmp_path)[1:]:
        assert row["mismatch/max"] < MOST_APART
        assert row["publish/probe_max_diff"] < MOST_APART


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_run_with_staleness_trains(task_folder, tmp_path, attached, mode):
    staleness = ("trainer.max_staleness=2", f"rollout.weight_update_mode={mode}")
    train(task_folder, tmp_path, f"rollout.sglang.urls=[{attached.url}]", *staleness)
    check_counts(tmp_path)
    sampled = versions(tmp_path)
    assert all(step - 3 <= version < step for step, found in sampled.items() for version in found)
    # some rollouts continued across updates
    assert any(version < step - 1 for step, found in sampled.items() for version in found)


def test_conversations_are_recorded_in_front_of_a_server_that_runs(task_folder, tmp_path, attached):
    """Its tokens and log-probabilities are those of the model that is then trained on them."""
    sglang = {"engine": "sglang", "script_path": None, "sglang": {"urls": [attached.url]}, "n": 2}

    async def talk() -> None:
        async with served(task_folder, tmp_path / "recorded", rollout=sglang) as gateway:
            for number, key in enumerate(await gateway.open()):
                answer = await gateway.chat(QUESTION, key, max_tokens=20)
                await gateway.chat([*QUESTION, answer, {"role": "user", "content": "Sure?"}], key, max_tokens=20)
                await gateway.end(key, reward=number)

    asyncio.run(talk())
    assert main(["replay", f"{tmp_path}/recorded", "audit"]) == 0
    saved = ["trainer.mode=train_only", f"trainer.saved_rollouts={tmp_path}/recorded", "trainer.logger=[jsonl]"]
    assert main(["train", f"model.path={task_folder}/model", *saved, f"trainer.default_local_dir={tmp_path}/t"]) == 0
    assert metrics(tmp_path / "t")[-1]["mismatch/max"] < MOST_APART


def test_server_killed_during_a_step_is_replaced(task_folder, tmp_path, monkeypatch):
    """The run continues with a restarted server, and contains the same groups as without the kill."""
    require_sglang()
    from agentrl.engines.sglang.engine import SglangEngine
    from agentrl.engines.sglang.servers.server import LocalServer

    servers, generate, num_calls = [], SglangEngine.generate, Counter()
    start = LocalServer.start
    monkeypatch.setattr(LocalServer, "start", lambda server: (servers.append(server), start(server))[1])

    async def killing(engine, request):
        num_calls["generate"] += 1
        if num_calls["generate"] == 20:  # in the second step, while other rollouts run
            os.killpg(servers[0].pid, signal.SIGKILL)
        return await generate(engine, request)

    monkeypatch.setattr(SglangEngine, "generate", killing)
    train(task_folder, tmp_path, "data.val_files=[]", "trainer.test_freq=0")
    assert num_calls["generate"] > 20
    assert len(servers) == 2  # started, then restarted
    check_counts(tmp_path)
    assert versions(tmp_path) == {step: {step - 1} for step in range(1, NUM_STEPS + 1)}
    assert (tmp_path / "sglang/replica-0.log").stat().st_size


@pytest.fixture(scope="module")
def mixture(task_folder, tmp_path_factory) -> Path:
    """A mixture-of-experts model with the task's tokenizer."""
    sizes = {"vocab_size": 520, "max_position_embeddings": 512, "eos_token_id": 2, "initializer_range": 0.05}
    folder = save_tiny_model(tmp_path_factory.mktemp("mixture"), "qwen3_moe", **sizes, num_experts=16)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(task_folder / "model" / name, folder)
    return folder


@pytest.mark.nightly
def test_a_mixture_of_experts_is_trained_with_the_experts_that_sampled(task_folder, mixture, tmp_path):
    """Includes rollouts of several versions; training on the stored rollouts gives the same numbers."""
    run, again = tmp_path / "run", tmp_path / "again"
    options = (f"model.path={mixture}", "rollout.routed_experts=true", "data.val_files=[]", "trainer.test_freq=0")
    train(task_folder, run, *options, "trainer.max_staleness=1")
    check_counts(run)
    first, *_ = metrics(run)
    assert first["mismatch/max"] < MOST_APART
    assert all(row["actor/replayed_share"] > 0.99 for row in metrics(run))
    assert any(row["staleness/tokens_lag_1"] for row in metrics(run))
    train(task_folder, again, *options, "trainer.mode=train_only", f"trainer.saved_rollouts={run}")
    names = ("actor/loss", "actor/grad_norm", "actor/replayed_share", "mismatch/k3")
    assert [[row[name] for name in names] for row in metrics(again)] == [
        [row[name] for name in names] for row in metrics(run)
    ]
