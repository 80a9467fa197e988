"""Result of an evaluation in the Python API: maps metric names to values, and contains the rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.reporting.evaluation import Evaluation
from agentrl.reporting.formatting import number, percent
from agentrl.types.rollout import Group, Rollout
from agentrl.utils.short_repr import counted


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Evaluated(Mapping[str, float]):
    """The result of an evaluation: `result["val/reward/mean"]` and `result.rollouts`.

    Attributes:
        metrics: name (`val/...`) -> value.
        groups: the rollouts of each task, in the order of the rows.
        figures: means and pass rates with 95% confidence intervals, overall and by data source.
        folder: contains eval.json, and the rollouts unless it is the folder of a training run.
    """

    metrics: Mapping[str, float]
    groups: Sequence[Group]
    figures: Evaluation
    folder: Path

    @property
    def rollouts(self) -> list[Rollout]:
        """The rollouts of all tasks."""
        return [rollout for group in self.groups for rollout in group.rollouts]

    @property
    def summary(self) -> str:
        """One line: the number of tasks and rollouts, mean reward and success rate."""
        overall = self.figures.overall
        parts = [counted(overall.num_tasks, "task"), counted(overall.num_rollouts, "rollout")]
        parts += [f"mean reward {number(overall.reward.value)}"] if overall.reward else []
        parts += [f"success {percent(overall.success.value)}"] if overall.success else []
        return ", ".join(parts)

    def __getitem__(self, name: str) -> float:
        return self.metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def __repr__(self) -> str:
        return f"Evaluated({self.summary}, {counted(len(self), 'metric')})"
