"""One small run for all audit tests; tests that alter it work on a copy."""

from __future__ import annotations

from pathlib import Path

import pytest
from audited_runs import make_run


@pytest.fixture(scope="session")
def audited_run(task_folder, tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("audited"), task_folder)
