"""The example dataset class: its rows become tasks, as rows of a file do."""

from __future__ import annotations

from pathlib import Path

from agentrl.config.data import CustomDatasetConfig, DataConfig
from agentrl.data.tasks import load_tasks

FILE = Path(__file__).parents[2] / "examples/custom_dataset/sums.py"


def test_rows_are_created_lazily() -> None:
    config = DataConfig(custom_cls=CustomDatasetConfig(path=FILE, name="Sums"))
    tasks = load_tasks(["100", "20"], config)
    assert len(tasks) == 120
    task = tasks[7]
    assert (task.messages[-1]["content"], task.ground_truth) == ("What is (91+22)-65?", "48")
    assert len({str(tasks[row].messages) for row in range(120)}) == 120
