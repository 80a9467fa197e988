"""One small run for all replay tests. Tests that alter it must copy it, which is checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from replayed_runs import make_run


@pytest.fixture(scope="session")
def saved_run(task_folder, tmp_path_factory) -> Iterator[Path]:
    run = make_run(tmp_path_factory.mktemp("replayed"), task_folder)
    before = contents(run.parent)
    yield run
    assert contents(run.parent) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
