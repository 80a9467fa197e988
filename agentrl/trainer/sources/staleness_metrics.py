"""Staleness metrics: the age of the training data, and the idle time of the engine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from agentrl.trainer.protocols import Metrics
from agentrl.types.rollout import Group
from agentrl.types.trajectory import Trajectory


def staleness_metrics(groups: Sequence[Group], policy_version: int, max_staleness: int) -> Metrics:
    """Return metrics of the staleness of a step's groups; `policy_version` is the version at the start of the step.

    Example with max_staleness = 2 and three groups of staleness 0, 2 and 2: `staleness/0` is 1/3, `staleness/1` 0,
    `staleness/2` 2/3, `staleness/mean` 4/3, `staleness/max` 2. `staleness/tokens_lag_1` is the share of
    the tokens that were sampled one version before `policy_version`. `staleness/partial` is the share of rollouts that
    were sampled by several versions.
    """
    found = [group.staleness(policy_version) for group in groups]
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    lags = _token_lags([t for rollout in rollouts if rollout.valid for t in rollout.trajectories], policy_version)
    metrics = {"staleness/mean": _mean(found), "staleness/max": float(max(found, default=0))}
    for age in range(max_staleness + 1):
        metrics[f"staleness/{age}"] = _mean([each == age for each in found])
        metrics[f"staleness/tokens_lag_{age}"] = lags[age] / max(1, lags.total())
    metrics["staleness/partial"] = _mean([len(set(rollout.policy_versions)) > 1 for rollout in rollouts])
    return metrics


def _token_lags(trajectories: Sequence[Trajectory], policy_version: int) -> Counter[int]:
    lags = Counter[int]()
    for trajectory in trajectories:
        for segment in trajectory.segments:
            for span in segment.policy_versions:
                lags[policy_version - span.version] += span.num_tokens
    return lags


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


class IdleTime:
    """Measures the total time without any rollout in flight."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._idle = True
        self._started = self._changed = clock()
        self._idle_s = 0.0

    def set(self, idle: bool) -> None:
        """Record whether the engine is idle (no rollout in flight) from now on."""
        now = self._clock()
        self._idle_s += (now - self._changed) * self._idle
        self._idle, self._changed = idle, now

    def take(self) -> tuple[float, float]:
        """Return (idle seconds, total seconds) since the last call."""
        self.set(self._idle)
        idle_s, all_s = self._idle_s, self._changed - self._started
        self._idle_s, self._started = 0.0, self._changed
        return idle_s, all_s
