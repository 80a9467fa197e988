"""One small run for all tests of the audit; who alters it copies it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from audited_runs import make_run

sys.path.extend(str(Path(__file__).parents[1] / name) for name in ("chat", "replay", "store"))  # their builders


@pytest.fixture(scope="session")
def audited_run(task_folder, tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("audited"), task_folder)
