"""Runs near a folder that is none, for the line that says so."""

from __future__ import annotations

from pathlib import Path

from agentrl.store.schema import TRAJECTORIES

MOST = 5


def runs_near(folder: Path) -> str:
    """`; runs near it: ...`: those right inside; nothing where there are none."""
    try:
        runs = sorted(str(path.parent) for path in folder.glob(f"*/{TRAJECTORIES}"))
    except OSError:  # such as a name that is too long for a file
        runs = []
    return f"; runs near it: {', '.join(runs[:MOST])}" if runs else ""
