"""Types that readers of a store return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl.types.excluded import Excluded
from agentrl.types.rollout import Rollout
from agentrl.types.task import Task
from agentrl.utils.short_repr import short


@dataclass(frozen=True, slots=True)
class Scores:
    """Training scores of a trajectory; see the same fields of `agentrl.types.sample.Sample`. None: not scored."""

    old_logprobs: Sequence[float] | None = None
    ref_logprobs: Sequence[float] | None = None
    values: Sequence[float] | None = None
    kl_coef: float = 0.0


@dataclass(frozen=True, slots=True, repr=False)
class StoredRollout:
    """One row: a rollout with its step, split and number. Fields of columns that were not read have default values.

    Attributes:
        number: index of the rollout in its group, from 0.
        advantages: for each trajectory one value per token, or None if the trajectory was not trained on.
        scores: scores of each trajectory; files of schema version 2 contain no scores.
        excluded: why the rollout was not trained on; None if it was trained on, or if its file has a schema version
            before 5.
    """

    step: int
    split: str
    number: int
    task: Task
    rollout: Rollout
    advantages: list[list[float] | None]
    scores: list[Scores] = field(default_factory=list)
    excluded: Excluded | None = None

    def __repr__(self) -> str:
        place = f"{self.split} step {self.step}, {short(self.task.uid, 20)}/{self.number}"
        return f"StoredRollout({place}, {self.rollout.stop}, reward {self.rollout.reward:g})"
