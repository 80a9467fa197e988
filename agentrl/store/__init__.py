"""Trajectories on disk: one Parquet file per step, one row per rollout."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.store.stored import Scores, StoredRollout
    from agentrl.store.trajectories import TrajectoryStore

__all__ = ["Scores", "StoredRollout", "TrajectoryStore"]


def __getattr__(name: str) -> object:
    """Import pyarrow only when a store is used, so that `store.layout` can be imported without pyarrow."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "trajectories" if name == "TrajectoryStore" else "stored"
    return getattr(import_module(f"{__name__}.{module}"), name)
