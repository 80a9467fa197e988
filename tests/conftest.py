"""The calculator task, made once: its own script makes it, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

CALCULATOR = Path(__file__).parents[1] / "examples/calculator"


@pytest.fixture(scope="session")
def make_task():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(CALCULATOR))
        import make_task

        yield make_task.make_task


@pytest.fixture(scope="session")
def task_folder(make_task, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("calculator")
    make_task(folder, seed=0)
    return folder
