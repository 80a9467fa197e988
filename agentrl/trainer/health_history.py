"""The steps of a run that the rules of health look at, and whether it learns well."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

Metrics = Mapping[str, float]

NUM_FIRST, NUM_RECENT, NUM_TREND = 5, 5, 20
GOOD_SUCCESS = 0.9


@dataclass(frozen=True)
class History:
    """The steps a rule looks at: the run's first and its latest, the last one last.

    Attributes:
        tools: names of the tools that are offered.
        compares: whether advantages come from comparing the rollouts of a group.
        over_sampling: share of the groups that is planned to be begun again.
    """

    tools: Sequence[str] = ()
    compares: bool = True
    over_sampling: float = 0.0
    first: list[Metrics] = field(default_factory=list)
    recent: deque[Metrics] = field(default_factory=lambda: deque(maxlen=NUM_TREND))

    def add(self, metrics: Metrics) -> None:
        """Take in one more step."""
        if len(self.first) < NUM_FIRST:
            self.first.append(metrics)
        self.recent.append(metrics)

    @property
    def now(self) -> Metrics:
        """The latest step."""
        return self.recent[-1]

    def latest(self, num_steps: int) -> list[Metrics]:
        """The latest `num_steps` steps; nothing while there are fewer."""
        return list(self.recent)[-num_steps:] if len(self.recent) >= num_steps else []

    def all_latest(self, num_steps: int, holds: Callable[[Metrics], bool]) -> bool:
        """Whether something held in each of the latest `num_steps` steps."""
        steps = self.latest(num_steps)
        return bool(steps) and all(map(holds, steps))

    def ratio_to_first(self, name: str) -> float | None:
        """Mean of the latest 5 steps to that of the first 5; None before there are ten steps that have it."""
        first, latest = (values(steps, name) for steps in (self.first, self.latest(NUM_RECENT)))
        if len(self.recent) < NUM_FIRST + NUM_RECENT or not (first and latest) or fmean(first) <= 0:
            return None
        return fmean(latest) / fmean(first)

    def learning_well(self) -> bool:
        """Whether the reward rises, or hardly can any more."""
        rewards, successes = values(self.recent, "reward/mean"), values(self.latest(NUM_RECENT), "success")
        half = len(rewards) // 2
        rises = half > 0 and fmean(rewards[half:]) > fmean(rewards[:half])
        return rises or (bool(successes) and fmean(successes) >= GOOD_SUCCESS)


def values(steps: Iterable[Metrics], name: str) -> list[float]:
    """What `steps` have of a metric, where it is finite."""
    return [step[name] for step in steps if math.isfinite(step.get(name, math.nan))]
