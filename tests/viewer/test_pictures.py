"""The pictures in README and docs are made from a quickstart folder, each in light and dark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import browser
import pytest
from viewer_runs import group, rollout, write_metrics, write_run

from agentrl.reporting.report import report_from_run

pytestmark = pytest.mark.slow

if browser.find() is None and not os.environ.get("CI"):
    pytest.skip("no chromium here: make browser", allow_module_level=True)  # in CI, a missing chromium fails

SCRIPT = Path(__file__).parents[2] / "docs/images/make_pictures.py"
NAMES = ("view", "view-curves", "view-rollouts", "report")


@pytest.mark.nightly
def test_every_picture_is_made_small_and_in_both_schemes(tmp_path):
    siblings = rollout("right", reward=1.0), rollout("wrong", ids=(3, 9, 5))
    for name in ("sft", "rl"):
        folder = write_run(tmp_path / "run" / name, {1: [group("a", *siblings)]})
        write_metrics(folder, [{"step": step, "val/success": step / 4, "success": step / 4} for step in (0, 2, 4)])
    report_from_run(tmp_path / "run/rl")
    summary = {"success_before": 0.25, "success_after": 0.75, "num_test_tasks": 512, "samples_per_task": 2}
    summary |= {"sft_seconds": 60, "rl_seconds": 30, "seed": 3}
    (tmp_path / "run/summary.json").write_text(json.dumps(summary))
    command = [sys.executable, SCRIPT, "--run", tmp_path / "run", "--out", tmp_path / "made"]
    subprocess.run(command, check=True, timeout=100)
    made = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    assert set(made) == {"quickstart.svg", *(f"{name}{dark}.png" for name in NAMES for dark in ("", "-dark"))}
    assert all(len(content) < 300_000 for content in made.values())
    for name in NAMES:
        assert made[f"{name}.png"] != made[f"{name}-dark.png"]


def test_missing_quickstart_run_is_a_one_line_error(tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, "--run", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert "make quickstart" in done.stderr
    assert len(done.stderr.splitlines()) == 1
