"""Metrics of a run: each is declared once, in the module of its topic.

Console, report, viewer, health rules and docs/metrics.md use these declarations.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from agentrl.telemetry.metrics import (
    collection,
    critic,
    engine,
    harness,
    off_policy,
    policy,
    reward_model,
    rewards,
    rollouts,
    timing,
    tools,
    validation,
)
from agentrl.telemetry.metrics.base import Metric

__all__ = ["GROUPS", "METRICS", "find_metric"]

STEP = Metric("step", "", "training step; 0 is before the first update")

TOPICS = (
    rewards,
    rollouts,
    tools,
    harness,
    policy,
    validation,
    critic,
    reward_model,
    off_policy,
    collection,
    engine,
    timing,
)
"""The modules with declarations, in the order of docs/metrics.md."""

METRICS = (STEP, *(each for topic in TOPICS for each in vars(topic).values() if isinstance(each, Metric)))

GROUPS = ("reward", "success", "val", "actor", "groups", "response_length", "num_turns", "tool_calls", "tool", "stop")
"""Prefixes whose metrics the viewer shows first; other prefixes follow in alphabetical order."""


def find_metric(name: str) -> Metric | None:
    """Return the declaration of a metric, or None; the most specific one if several patterns match."""
    found = next((metric for metric in _ranked() if metric.pattern.fullmatch(name)), None)
    if found is validation.OF_VALIDATION:
        inner = find_metric(name.removeprefix("val/"))
        return inner and replace(inner, name=name)
    return found


@cache
def _ranked() -> list[Metric]:
    """Return the declarations, the most specific first: by the fewest `<word>` parts, then by the longest name."""
    return sorted(METRICS, key=lambda metric: (metric.name.count("<"), -len(metric.name)))
