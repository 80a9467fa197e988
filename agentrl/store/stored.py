"""What readers of a store are given."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.attempt import Rollout
from agentrl.task import Task


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """One row: a rollout, and where it stood. What of it was not read has its default.

    Attributes:
        number: its place among the rollouts of its group, from 0.
        advantages: for each trajectory one a token, or None where it was not trained on.
    """

    step: int
    split: str
    number: int
    task: Task
    rollout: Rollout
    advantages: list[list[float] | None]
