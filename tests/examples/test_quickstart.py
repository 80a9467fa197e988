"""The quickstart, end to end, from random weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PLOT = Path(__file__).parents[2] / "examples/calculator/plot.py"
KEYS = {
    "success_before",
    "success_after",
    "num_test_tasks",
    "samples_per_task",
    "teacher_share_correct",
    "tool_call_share",
    "sft_steps",
    "rl_steps",
    "sft_seconds",
    "rl_seconds",
    "seed",
}


def replay(folder: Path, *words: str) -> dict[str, Any]:
    """What the one mode found; Any: JSON."""
    command = [sys.executable, "-m", "agentrl", "replay", *words, "--json", "-"]
    found = json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout)
    return found["results"][0]


@pytest.mark.slow
def test_the_quickstart_ends_far_above_its_teacher(quickstart, tmp_path):
    run = quickstart / "outputs/quickstart"
    summary = json.loads((run / "summary.json").read_text())
    assert summary.keys() == KEYS
    assert (summary["num_test_tasks"], summary["samples_per_task"], summary["seed"]) == (512, 2, 0)
    assert summary["teacher_share_correct"] <= 0.25
    assert 0.15 <= summary["success_before"] <= 0.40
    assert summary["success_after"] >= 0.90
    assert summary["tool_call_share"] > 0.95
    assert 10 <= summary["rl_steps"] <= 100
    assert not replay(quickstart, "outputs/quickstart/rl", "audit")["failed"]
    before_and_after = ("outputs/quickstart/rl@first", "compare", "outputs/quickstart/rl@last", "--split", "val")
    gain = replay(quickstart, *before_and_after)["values"]["scores"][0]["difference"]
    assert 0.4 < gain["low"] < gain["value"] < gain["high"]
    picture = tmp_path / "picture.svg"
    subprocess.run([sys.executable, PLOT, "--out", picture], cwd=quickstart, check=True)
    assert f"{summary['success_after']:.1%}" in picture.read_text()
