"""Check that a path of saved rollouts exists, and suggest runs nearby. This module imports nothing slow."""

from __future__ import annotations

import os
from pathlib import Path

from agentrl.errors import DataError
from agentrl.store.layout import TRAJECTORIES

MAX_SHOWN = 5


def split_place(where: str) -> tuple[str, str]:
    """Split `PATH` or `PATH@STEP` into (path, step); without a step, the step is "".

    Raises:
        DataError: nothing exists at the path.
    """
    name, _, step = where.rpartition("@") if "@" in where and not _exists(where) else (where, "", "")
    if not _exists(name):
        raise DataError(f"there is no '{name}'{runs_near(Path(name).parent)}")
    return name, step


def runs_near(folder: Path) -> str:
    """Return `; runs nearby: ...` for the runs directly inside `folder`; empty if `folder` contains no run."""
    try:
        runs = sorted(str(path.parent) for path in folder.glob(f"*/{TRAJECTORIES}"))
    except OSError:  # for example, the file name is too long
        runs = []
    return f"; runs nearby: {', '.join(runs[:MAX_SHOWN])}" if runs else ""


def _exists(name: str) -> bool:
    return os.path.exists(name)  # noqa: PTH110  # pathlib raises if the file name is too long
