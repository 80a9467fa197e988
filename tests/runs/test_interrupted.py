"""Ctrl-C and SIGTERM in each phase: the run ends soon, prints how to resume, and its last checkpoint is complete."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

RUNS = Path(__file__).parent / "interrupted_runs.py"
CASES = {
    "loading": None,
    "rollout": "step-1",
    "validation": None,
    "scoring": "step-2",  # the step is finished and saved
    "learning": "step-2",
    "publishing": "step-2",
    "saving": "step-2",
    "twice": "step-1",
}
"""Phase -> the checkpoint that exists afterwards."""

AT_ONCE = ("twice",)
STARTING = ("loading", "validation")  # no checkpoint exists yet


def interrupt(task_folder: Path, out: Path, cases: list[str]) -> dict[str, dict[str, object]]:
    command = [sys.executable, str(RUNS), str(task_folder), str(out), *cases]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1500)
    return dict(zip(cases, map(json.loads, done.stdout.splitlines()), strict=True))


def check(case: str, result: dict[str, object]) -> None:
    phase, signal = case.split(":")
    assert result["status"] == {"SIGINT": 130, "SIGTERM": 143}[signal]
    assert result["seconds"] < 300  # hung calls hang for ten minutes
    first, hint, last = result["said"]
    assert first.startswith("agentrl: stopping; " if phase in STARTING else "agentrl: stopping after this step; ")
    assert last.startswith("agentrl: interrupted")
    assert ("at once" in last) == (phase in AT_ONCE)
    checkpoints = Path(str(result["folder"])) / "checkpoints"
    assert result["latest"] == CASES[phase]
    if result["latest"]:
        assert hint.endswith(f"agentrl train --resume {checkpoints.parent} resumes from {result['latest']}")
        assert load_file(checkpoints / "latest/model.safetensors")
        assert json.loads((checkpoints / "latest/run_state.json").read_text())["step"] == int(result["latest"][-1])
    else:
        again = f"agentrl train --resume {checkpoints.parent} starts the run again"
        assert hint.endswith(f"stopped before the first checkpoint; {again}")


ALL = [f"{phase}:{name}" for phase in CASES for name in ("SIGINT", "SIGTERM")]
FAST = ["learning:SIGTERM", "twice:SIGINT"]


@pytest.fixture(scope="module")
def results(task_folder, tmp_path_factory):
    return interrupt(task_folder, tmp_path_factory.mktemp("interrupted"), FAST)


@pytest.mark.slow
@pytest.mark.parametrize("case", FAST)
def test_interrupted_run_stops_quickly_and_cleanly(results, case):
    check(case, results[case])


@pytest.mark.nightly
def test_interrupt_in_every_phase_and_signal_resumes(task_folder, tmp_path):
    for case, result in interrupt(task_folder, tmp_path, [case for case in ALL if case not in FAST]).items():
        check(case, result)
