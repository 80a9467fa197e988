"""One small run, which the attack tests copy and alter."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def honest_run(task_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from replayed_runs import make_run

    return make_run(tmp_path_factory.mktemp("honest"), task_folder)
