"""Trajectories on disk: one Parquet file a step, one row a rollout."""

from agentrl.store.stored import Scores, StoredRollout
from agentrl.store.trajectories import TrajectoryStore

__all__ = ["Scores", "StoredRollout", "TrajectoryStore"]
