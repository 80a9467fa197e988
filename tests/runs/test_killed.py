"""SIGKILL at named and at random moments: the resumed run ends bit for bit like an uninterrupted run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from same_run import differences

RUNS = Path(__file__).parent / "killed_runs.py"
# Several kills of a run cost little more than one, and the last process must still make up for all of them
NAMED = {
    "records and weights": [
        "renamed=2,metrics=2",  # between renaming a checkpoint and linking it; then in the middle of a line
        "rollout=15,tool=9,optimizer=5,store=4",
        "publish=3,half_a_state=1,samples=1",
    ],
    "checkpoints": [
        "run_state=1,linked=1,checkpoint=1,report=1",
        "validation=5,stored=3,removing=1",
        "generations=2,linking=2,half_removed=1",
    ],
    "best checkpoint, truncated records": [
        "warnings=1,linked_best=1,renaming=1",
        "update=8,cut_rollouts=1",  # between two mini-batches; then while the resumed run truncates its records
        "update=8,cutting_metrics=1,cut_metrics=1,cutting_generations=1,cutting_rollouts=1",
    ],
}
VARIED = {
    "adapter, critic, background": [
        "lora:update=6,half_a_state=1,publish=2",
        "gae:update=9,half_a_state=2,optimizer=4",  # between the critic's updates; then in the critic's state
        "async:checkpoint=1,linked_best=1,half_a_state=1,renaming=1",
    ],
    "offload, goal, slow tool": [
        "offload:optimizer=9,run_state=1,update=1",
        "goal:linking=1,samples=1",
        "async:update=6,linking=1,removing=1",
        "slow_tool:validation=2,tool=6,tool=3",
    ],
}
RANDOM = [f"plain:random={seed}" for seed in range(3)]
NUM_RANDOM_KILLS = 10
pytestmark = pytest.mark.minutes


def run(task_folder: Path, out: Path, scenarios: list[str]) -> list[dict]:
    """The result of each run; uninterrupted runs come first."""
    whole = [f"{variant}:" for variant in dict.fromkeys(scenario.partition(":")[0] for scenario in scenarios)]
    command = [sys.executable, str(RUNS), str(task_folder), str(out), *whole, *scenarios]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1500)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    folders = {result["scenario"]: Path(result["folder"]) for result in results[: len(whole)]}
    for result in results:
        result["whole"] = folders[result["scenario"].partition(":")[0] + ":"]
    return results[len(whole) :]


def check(result: dict) -> None:
    *killed, last = result["lives"]
    said = Path(result["folder"]).with_suffix(".log")
    assert last["status"] == 0, said.read_text()[-2000:]
    assert all(life["status"] == -signal.SIGKILL and life["hit"] == life["asked"] for life in killed)
    assert differences(result["whole"], Path(result["folder"])) == []


def check_named(result: dict) -> None:
    check(result)
    assert [life["hit"] for life in result["lives"]] == [
        *(kill.partition("=")[0] for kill in result["scenario"].partition(":")[2].split(",")),
        None,  # every kill happened, and the last process was not killed
    ]


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMED)
def test_kill_in_every_phase_resumes(task_folder, tmp_path, name):
    for result in run(task_folder, tmp_path, [f"plain:{kills}" for kills in NAMED[name]]):
        check_named(result)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", VARIED)
def test_kill_resumes_with_other_options(task_folder, tmp_path, name):
    for result in run(task_folder, tmp_path, VARIED[name]):
        check_named(result)


@pytest.mark.nightly
def test_kills_at_random_moments_resume(task_folder, tmp_path):
    results = run(task_folder, tmp_path, RANDOM)
    for result in results:
        check(result)
    assert sum(life["hit"] is not None for result in results for life in result["lives"]) >= NUM_RANDOM_KILLS
