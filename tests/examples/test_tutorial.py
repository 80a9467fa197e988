"""docs/tutorial.md, file by file and command by command, in a new folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorial.md").read_text()
STEPS = re.compile(r"(?:^`([\w./]+)`:\n\n)?^```(\w+)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def do(folder, name, language, text):
    if name:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        return
    assert language == "sh", text
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "AGENTRL": str(ROOT), "PATH": path, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        ["bash", "-euc", text], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


@pytest.mark.slow
def test_custom_task_from_rows_to_a_first_step(tmp_path):
    steps = STEPS.findall(PAGE)
    assert len(steps) >= 12
    for step in steps:
        do(tmp_path, *step)
    scripted = json.loads((tmp_path / "outputs/scripted/eval.json").read_text())
    assert scripted["val/success"] == 1.0
    assert scripted["val/tool/count/ok"] == scripted["val/tool/take/ok"] == 16
    metrics = [json.loads(line) for line in (tmp_path / "outputs/warehouse/metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["step"] == 1
    assert metrics[-1]["actor/updates"] >= 1
    assert "reward/calls_ok" in metrics[-1]


def test_every_code_block_of_the_tutorial_is_a_file_or_a_command():
    assert {language for name, language, _ in STEPS.findall(PAGE) if not name} == {"sh"}
