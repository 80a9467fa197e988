"""An engine in one file, selected by its path: the contract suite, and one training step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_contract import CONTRACT, Subject, check_contract
from engine_models import tiny_model
from third_engine import PlainEngine

from agentrl.cli.main import main

ROOT = Path(__file__).parents[2]
NAME = "rollout.engine=tests/engines/third_engine.py:SPEC"
SUBJECT = Subject(
    lambda: PlainEngine(tiny_model("qwen3"), 256),
    lambda: list(tiny_model("qwen3").named_parameters()),
    stop_token_id=96,
)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_user_defined_engine_satisfies_the_contract(check):
    check_contract(check, SUBJECT)


def train(task_folder: Path, folder: Path, *overrides: str) -> int:
    """One step of the calculator task with the engine."""
    options = [
        *(f"model.path={task_folder}/model", f"data.train_files={task_folder}/train.jsonl", "data.val_files=[]"),
        *("data.train_batch_size=2", "rollout.n=2", "rollout.val_kwargs={}", "rollout.multi_turn.max_turn_tokens=8"),
        *("trainer.stop_when=null", "trainer.test_freq=0", "trainer.total_training_steps=1"),
        *("trainer.logger=[jsonl]", "trainer.num_threads=1", f"trainer.default_local_dir={folder}", NAME),
    ]
    return main(["train", "+experiment=calculator", *options, *overrides])


@pytest.mark.slow
def test_third_engine_trains_a_step(task_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert train(task_folder, tmp_path, "rollout.deterministic=false") == 0
    (row,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()][-1:]
    assert row["step"] == 1
    assert row["engine/sampled_tokens"] > 0
    assert row["publish/num_bytes"] > 0
    assert row["mismatch/max"] < 1e-4
    said = json.loads((tmp_path / "environment.json").read_text())["reproducible"]
    assert said["promised"], said


def test_unsupported_engine_options_are_refused(task_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert train(task_folder, tmp_path, "rollout.routed_experts=true", "rollout.sglang.num_replicas=2") == 2
    (*lines,) = capsys.readouterr().err.splitlines()
    for key in ("rollout.deterministic", "rollout.routed_experts", "rollout.sglang.num_replicas"):
        assert sum(f"'{key}' has no effect without 'rollout.engine=" in line for line in lines) == 1, lines
