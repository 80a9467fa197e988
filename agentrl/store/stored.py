"""What readers of a store are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl.attempt import Rollout
from agentrl.task import Task


@dataclass(frozen=True, slots=True)
class Scores:
    """What a trajectory was scored with for training, as in `agentrl.samples.Sample`; None where it was not."""

    old_logprobs: Sequence[float] | None = None
    ref_logprobs: Sequence[float] | None = None
    values: Sequence[float] | None = None
    kl_coef: float = 0.0


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """One row: a rollout, and where it stood. What of it was not read has its default.

    Attributes:
        number: its place among the rollouts of its group, from 0.
        advantages: for each trajectory one a token, or None where it was not trained on.
        scores: of each trajectory; files of schema 2 have none.
    """

    step: int
    split: str
    number: int
    task: Task
    rollout: Rollout
    advantages: list[list[float] | None]
    scores: list[Scores] = field(default_factory=list)
