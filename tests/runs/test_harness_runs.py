"""Complete runs whose rollouts are a program: audited, equal bit by bit, and killed without a trace."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from babbling import FORMAT, babble_is_known  # noqa: F401  # the second a fixture
from same_run import differences
from warm_agentrl import agentrl

from agentrl.audit.auditor import Auditor
from agentrl.config import validate_config
from agentrl.store import TrajectoryStore
from agentrl.telemetry.jsonl import read_metrics
from agentrl.trainer.builders.rollouts import UserObjects
from agentrl.trainer.run import run_training
from agentrl.types.rollout import Stop
from agentrl.types.trajectory import Author

PROGRAM = Path(__file__).parents[1] / "harness/patient_program.py"
REWARD = """
from zlib import crc32

def compute_score(data_source, solution_str, ground_truth, extra_info):
    assert extra_info["harness_exit_code"] in (0, 5, None)
    return crc32(solution_str.encode()) % 5 / 4
"""


@pytest.fixture(autouse=True)
def harness_helpers(monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAM.parent))


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def configuration(task_folder: Path, folder: Path, run: Path, **harness: object) -> dict[str, object]:
    (folder / "reward.py").write_text(REWARD)
    settings = {"command": [sys.executable, str(PROGRAM), run.name], **harness}
    (folder / "tested.yaml").write_text(json.dumps(settings))
    return {
        "model": {"path": str(task_folder / "model")},
        "data": {
            "train_files": [str(task_folder / "train.jsonl")],
            "train_max_samples": 4,
            "train_batch_size": 2,
            "max_prompt_length": 600,
            "max_response_length": 240,
        },
        "rollout": {
            "n": 3,
            "deterministic": True,
            "max_num_seqs": 8,
            "harness": str(folder / "tested.yaml"),
            "multi_turn": {"format": FORMAT, "max_turn_tokens": 24, "max_assistant_turns": 7},
        },
        "actor": {"optim": {"lr": 1e-3}},
        "reward": {"custom_reward_function": {"path": folder / "reward.py"}},
        "trainer": {"default_local_dir": run, "total_training_steps": 1, "logger": ["jsonl"]},
    }


def train(task_folder: Path, folder: Path, run: Path, **harness: object) -> None:
    run_training(validate_config(configuration(task_folder, folder, run, **harness)), UserObjects())


def test_a_run_of_a_program_trains_and_passes_the_audit(task_folder, tmp_path):
    run = tmp_path / "run"
    train(task_folder, tmp_path, run)
    rollouts = [stored.rollout for stored in TrajectoryStore(run / "trajectories/train").scan()]
    assert len(rollouts) == 6
    assert {rollout.stop for rollout in rollouts} <= {Stop.FINISHED, Stop.MAX_ASSISTANT_TURNS}
    authors = {segment.author for each in rollouts for part in each.trajectories for segment in part.segments}
    assert {Author.PROMPT, Author.MODEL, Author.TOOL} <= authors
    ledger = Auditor(folder=run).audit(sorted((run / "trajectories").rglob("*.parquet")))
    assert {name: finding.problems for name, finding in ledger.findings.items() if finding.num_problems} == {}
    (metrics,) = read_metrics(run / "metrics.jsonl")
    assert metrics["harness/requests/mean"] >= 1
    assert metrics["harness/failed"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("place", [{}, {"sandbox": "local"}, {"network": "gateway", "max_running": 2}])
def test_runs_of_a_program_are_equal_bit_by_bit(task_folder, tmp_path, place):
    if "sandbox" in place:
        place = {**place, "command": ["python3", "-c", PROGRAM.read_text()]}
    for name in ("one", "other"):
        train(task_folder, tmp_path, tmp_path / name, **place)
    assert differences(tmp_path / "one", tmp_path / "other") == []


@pytest.mark.slow
def test_a_killed_run_leaves_no_harness(task_folder, tmp_path):
    from harness_builders import new_mark, processes

    mark = new_mark()
    command = ["bash", "-c", f"echo started; (setsid bash -c 'sleep 1000; :' {mark} &); sleep 1001; :", mark]
    settings = configuration(task_folder, tmp_path, tmp_path / "run", command=command)
    (tmp_path / "run.yaml").write_text(json.dumps(settings, default=str).replace(FORMAT, "hermes"))
    line = [*agentrl(), "train", "--config", str(tmp_path / "run.yaml")]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as run:
        try:
            until(lambda: len([*processes(mark)]) >= 2 * 4)  # more do not start before these have asked
        finally:
            run.kill()
    until(lambda: not [*processes(mark)])
