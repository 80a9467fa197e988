"""A run on a taskset of verifiers, with the real package: its rollouts are trained on and pass the audit."""

from __future__ import annotations

import json

import pytest
from babbling import FORMAT, babble_is_known  # noqa: F401  # the second a fixture
from peer_environments import ROOT, peer_python

from agentrl.audit.auditor import Auditor
from agentrl.config import validate_config
from agentrl.store import TrajectoryStore
from agentrl.trainer.builders.rollouts import UserObjects
from agentrl.trainer.run import run_training

TASKSET = """
from agentrl.harness.verifiers import Taskset

taskset = Taskset({python!r}, "sums-taskset", env={{"PYTHONPATH": {path!r}}})
run = taskset.run

if __name__ == "__main__":
    taskset.write_rows("rows.jsonl")
"""


@pytest.mark.slow
def test_a_run_on_a_taskset(task_folder, tmp_path, monkeypatch):
    text = TASKSET.format(python=str(peer_python("verifiers")), path=str(ROOT / "tests/harness"))
    (tmp_path / "sums.py").write_text(text)
    (tmp_path / "sums.yaml").write_text(json.dumps({"function": "sums.py:run", "max_running": 4}))
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "sums.py", "exec"), {"__name__": "__main__"})
    run = tmp_path / "run"
    config = {
        "model": {"path": str(task_folder / "model")},
        "data": {
            "train_files": [str(tmp_path / "rows.jsonl")],
            "train_max_samples": 2,
            "train_batch_size": 2,
            "max_prompt_length": 400,
            "max_response_length": 120,
        },
        "rollout": {
            "n": 2,
            "max_num_seqs": 4,
            "harness": str(tmp_path / "sums.yaml"),
            "multi_turn": {"format": FORMAT, "max_turn_tokens": 24, "max_assistant_turns": 4},
        },
        "actor": {"optim": {"lr": 1e-3}},
        "reward": {"name": "none"},
        "trainer": {"default_local_dir": run, "total_training_steps": 1, "logger": ["jsonl"]},
    }
    run_training(validate_config(config), UserObjects())
    rollouts = [stored.rollout for stored in TrajectoryStore(run / "trajectories/train").scan()]
    assert len(rollouts) == 4
    assert [rollout.error for rollout in rollouts] == [None] * 4
    assert all(rollout.rewards["score"] in (0.0, 1.0) for rollout in rollouts)
    assert all(rollout.trajectories[0].num_turns == 1 for rollout in rollouts)
    ledger = Auditor(folder=run).audit(sorted((run / "trajectories").rglob("*.parquet")))
    assert {name: finding.problems for name, finding in ledger.findings.items() if finding.num_problems} == {}
