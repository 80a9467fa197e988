"""Metrics of the first and latest steps of a run, for the health rules."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from agentrl.telemetry.metrics.rewards import REWARD, SUCCESS

Metrics = Mapping[str, float]

NUM_FIRST, NUM_RECENT, NUM_TREND = 5, 5, 20
GOOD_SUCCESS = 0.9


@dataclass(frozen=True)
class History:
    """Metrics of the first and the latest steps of a run, in the order of the steps.

    Attributes:
        tools: names of the offered tools.
        compares: whether advantages depend on how the rewards of a group differ.
        over_sampling: share of groups that over-sampling is expected to requeue.
    """

    tools: Sequence[str] = ()
    compares: bool = True
    over_sampling: float = 0.0
    first: list[Metrics] = field(default_factory=list)
    recent: deque[Metrics] = field(default_factory=lambda: deque(maxlen=NUM_TREND))

    def add(self, metrics: Metrics) -> None:
        """Add the metrics of a step."""
        if len(self.first) < NUM_FIRST:
            self.first.append(metrics)
        self.recent.append(metrics)

    @property
    def now(self) -> Metrics:
        """Metrics of the latest step."""
        return self.recent[-1]

    def latest(self, num_steps: int) -> list[Metrics]:
        """Return the latest `num_steps` steps; empty if the run has fewer steps."""
        return list(self.recent)[-num_steps:] if len(self.recent) >= num_steps else []

    def all_latest(self, num_steps: int, holds: Callable[[Metrics], bool]) -> bool:
        """Return whether `holds` is true for each of the latest `num_steps` steps; False if the run has fewer steps."""
        steps = self.latest(num_steps)
        return bool(steps) and all(map(holds, steps))

    def ratio_to_first(self, name: str) -> float | None:
        """Return the mean of a metric over the latest 5 steps, divided by its mean over the first 5 steps.

        Return None before ten steps, if a mean is undefined, or if the first mean is not positive.
        """
        first, latest = (values(steps, name) for steps in (self.first, self.latest(NUM_RECENT)))
        if len(self.recent) < NUM_FIRST + NUM_RECENT or not (first and latest) or fmean(first) <= 0:
            return None
        return fmean(latest) / fmean(first)

    def learning_well(self) -> bool:
        """Return whether the reward rises, or is already close to its maximum."""
        rewards, successes = values(self.recent, REWARD.name), values(self.latest(NUM_RECENT), SUCCESS.name)
        half = len(rewards) // 2
        rises = half > 0 and fmean(rewards[half:]) > fmean(rewards[:half])
        return rises or (bool(successes) and fmean(successes) >= GOOD_SUCCESS)


def values(steps: Iterable[Metrics], name: str) -> list[float]:
    """Return the finite values of a metric in `steps`."""
    return [step[name] for step in steps if math.isfinite(step.get(name, math.nan))]
