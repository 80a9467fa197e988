"""The code of the Python API page, block by block in a new folder, on the calculator's tiny model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/python.md"


@pytest.mark.slow
def test_every_block_of_the_page_runs(task_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"model": task_folder / "model", "__name__": "page"}
    for code in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE):
        code = code.replace('"outputs/quickstart/rl"', "run_folder").replace(
            'total_training_steps": 10', 'total_training_steps": 1'
        )
        code = re.sub(r'"outputs/[ab]@last"', 'f"{run_folder}@last"', code).replace("step=10", "step=1")
        code = code.replace('split="val"', 'split="train"').replace('to_pandas("val")', 'to_pandas("train")')
        exec(compile(code, str(PAGE), "exec"), names)
    assert names["result"]["val/num_tasks"] == 8
    assert len(names["groups"][0].rollouts) == 4
