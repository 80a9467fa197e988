"""Trajectories on disk: one Parquet file a step, one row a rollout."""

from agentrl.store.decode import StoredRollout
from agentrl.store.trajectories import TrajectoryStore

__all__ = ["StoredRollout", "TrajectoryStore"]
