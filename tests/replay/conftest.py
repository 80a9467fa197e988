"""One small run for all tests of replay; who alters it copies it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from replayed_runs import make_run

sys.path.append(str(Path(__file__).parents[1] / "trainer"))  # whose builders tests of rolling out again share


@pytest.fixture(scope="session")
def saved_run(task_folder, tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("replayed"), task_folder)
