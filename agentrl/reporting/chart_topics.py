"""The fixed charts of a report; `charts` adds further charts, for example one for each reward component."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from agentrl.reporting.formatting import number, percent
from agentrl.telemetry.metrics import METRICS

NOISE = 1e-6
"""Rounding noise of metrics computed from float32 log-probabilities. Smaller differences are not shown."""

NOISY = {"actor", "critic", "kl", "mismatch", "publish"}
"""Prefixes of metrics that are computed from log-probabilities."""


class Topic(NamedTuple):
    """A chart: its title and the unit of its values; for the other fields, see `charts.Chart`."""

    title: str
    unit: str
    write: Callable[[float], str]
    noise: float = 0.0
    always: bool = False

    @property
    def lines(self) -> list[tuple[str, str]]:
        """(label, metric) of each line, as declared in `agentrl.telemetry.metrics`."""
        placed = ((metric.report, metric.name) for metric in METRICS if metric.report)
        return [(line.label, name) for line, name in placed if line.chart == self.title]


_SHARE = "share of rollouts"
TOPICS = (
    Topic("Success", _SHARE, percent, always=True),
    Topic("Reward", "mean score", number, always=True),
    Topic("Response length", "tokens", number),
    Topic("Turns", "turns per rollout", number),
    Topic("Dropped rollouts", _SHARE, percent, NOISE),
    Topic("KL divergence", "nats per token", number, NOISE),
    Topic("Coefficient of the KL in the reward", "coefficient", number),
    Topic("Pairs ranked correctly", "share of pairs", percent),
    Topic("Preference", "log-ratio times beta", number, NOISE),
    Topic("Samples in the loss", "share of samples", percent, NOISE),
    Topic("Groups of a step", "groups", number),
    Topic("Clipped tokens", "share of tokens", percent, NOISE),
    Topic("Entropy", "nats", number, NOISE),
    Topic("Loss", "loss", number, NOISE),
    Topic("Variance explained by the critic", "share of variance", percent, NOISE),
    Topic("Gradient norm", "norm", number, NOISE),
    Topic("Learning rate", "learning rate", number),
    Topic("Time per step", "seconds", number),
    Topic("Throughput", "tokens per second", number),
    Topic("Cached context", "share of tokens", percent, NOISE),
    Topic("Mismatch of engine and trainer", "nats per token", number, NOISE),
    Topic("Staleness", "weight versions", number),
    Topic("Asynchronous rollouts", "share", percent),
)
