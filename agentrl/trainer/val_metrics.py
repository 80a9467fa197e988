"""The validation metric that `stop_when` and `save_best` look at: is there one of that name, and what is its value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from agentrl.errors import ConfigError, suggestion
from agentrl.rollouts.metrics import rollout_metrics
from agentrl.task import Task
from agentrl.trajectory import Group, Outcome, Rollout, Stop, ToolCall

_REWARDS = "val/reward/"  # a reward function names its parts when it scores, not before


def check_metric(key: str, metric: str, data_sources: Iterable[str], tools: Iterable[str]) -> None:
    """Refuse a name that no validation will have.

    Args:
        key: the key of the configuration that names it.
        data_sources: of the validation tasks.
        tools: names of the tools that are offered.

    Raises:
        ConfigError: there will be no such metric; it is not the part of a reward, whose names show only later.
    """
    calls = [ToolCall(name, "", "", Outcome.OK) for name in tools]
    scored = Rollout([], Stop.FINISHED, {"score": 0.0}, tool_calls=calls)
    groups = [Group(Task([], data_source=name), [scored]) for name in data_sources]
    names = {f"val/{name}" for name in [*rollout_metrics(groups), "num_tasks"]}
    if metric not in names and not metric.startswith(_REWARDS):
        raise ConfigError(f"'{key}': validation has no '{metric}': {suggestion(metric, names)}")


def metric_value(key: str, metric: str, metrics: Mapping[str, float]) -> float:
    """Its value; NaN where this validation has none, such as for a tool that was not called.

    Raises:
        ConfigError: it would be the part of a reward, and the reward has no such part.
    """
    if metric not in metrics and metric.startswith(_REWARDS):
        raise ConfigError(f"'{key}': validation has no '{metric}': {suggestion(metric, metrics)}")
    return metrics.get(metric, math.nan)
