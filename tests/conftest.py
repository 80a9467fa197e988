"""What all tests share: Ctrl-C that is heard, and the calculator task, made once by its own script in this process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background, and all it starts, would ignore it

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
