"""docs/tutorial.md, file by file and command by command, in a new folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from warm_agentrl import agentrl

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorial.md").read_text()
STEPS = re.compile(r"(?:^`([\w./]+)`:\n\n)?^```(\w+)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def program(tmp_path_factory):
    """A folder with the program `agentrl`, which starts without the time of its imports."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "agentrl").write_text(f'#!/bin/sh\nexec {shlex.join(agentrl())} "$@"\n')
    (folder / "agentrl").chmod(0o755)
    return folder


def do(folder, program, name, language, text):
    if name:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        return
    assert language == "sh", text
    path = os.pathsep.join([str(program), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "AGENTRL": str(ROOT), "PATH": path, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        ["bash", "-euc", text], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


@pytest.mark.slow
def test_custom_task_from_rows_to_a_first_step(tmp_path, program):
    steps = STEPS.findall(PAGE)
    assert len(steps) >= 12
    for step in steps:
        do(tmp_path, program, *step)
    scripted = json.loads((tmp_path / "outputs/scripted/eval.json").read_text())
    assert scripted["val/success"] == 1.0
    assert scripted["val/tool/count/ok"] == scripted["val/tool/take/ok"] == 16
    metrics = [json.loads(line) for line in (tmp_path / "outputs/warehouse/metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["step"] == 1
    assert metrics[-1]["actor/updates"] >= 1
    assert "reward/calls_ok" in metrics[-1]


def test_every_code_block_of_the_tutorial_is_a_file_or_a_command():
    assert {language for name, language, _ in STEPS.findall(PAGE) if not name} == {"sh"}
