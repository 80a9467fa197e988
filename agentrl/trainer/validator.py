"""Validation: rolls out held-out tasks with the current weights; checks the names of validation metrics."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from agentrl.errors import ConfigError, Kind, suggestion
from agentrl.rollouts.metrics import rollout_metrics
from agentrl.types.rollout import Group, Outcome, Rollout, Stop, ToolCall
from agentrl.types.task import Task

Collect = Callable[[Sequence[Task]], Awaitable[list[Group]]]

_REWARDS = "val/reward/"  # names of reward parts are known only after the first score


class Validator:
    """Validates a policy on fixed tasks, with the same sampling seeds every time.

    Args:
        publish: loads the weights of a version into the engine; does nothing if they are already loaded.
        success_threshold: a score of at least this value is a success.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        collect: Collect,
        publish: Callable[[int], Awaitable[None]],
        success_threshold: float,
    ) -> None:
        self._tasks = [replace(task, uid=f"val-{task.index}") for task in tasks]
        self._collect = collect
        self._publish = publish
        self._success_threshold = success_threshold

    async def __call__(self, step: int) -> tuple[dict[str, float], list[Group]]:
        """Return (metrics named `val/...`, the rolled-out groups) for the weights after `step`."""
        await self._publish(step)
        groups = await self._collect(self._tasks)
        metrics = rollout_metrics(groups, self._success_threshold) | {"num_tasks": float(len(groups))}
        return {f"val/{name}": value for name, value in metrics.items()}, groups


def check_metric(key: str, metric: str, data_sources: Iterable[str], tools: Iterable[str]) -> None:
    """Check that validation reports a metric of this name.

    Args:
        key: the configuration key that names the metric.
        data_sources: data sources of the validation tasks.
        tools: names of the tools that the model may call.

    Raises:
        ConfigError: there is no metric of this name. Names of reward parts are not checked: they are not known yet.
    """
    calls = [ToolCall(name, "", "", outcome) for name in tools for outcome in (Outcome.OK, Outcome.TOOL_ERROR)]
    scored = Rollout([], Stop.FINISHED, {"score": 0.0}, tool_calls=calls)
    groups = [Group(Task([], data_source=name), [scored]) for name in data_sources]
    names = {f"val/{name}" for name in [*rollout_metrics(groups), "num_tasks"]}
    if metric not in names and not metric.startswith(_REWARDS):
        raise ConfigError.at(key, Kind.NOT_FOUND, f"`{key}`: validation has no '{metric}': {suggestion(metric, names)}")


def metric_value(key: str, metric: str, metrics: Mapping[str, float]) -> float:
    """Return the value of a metric; NaN if this validation has none, for example for a tool that was not called.

    Raises:
        ConfigError: the metric is a reward part that no rollout has.
    """
    if metric not in metrics and metric.startswith(_REWARDS):
        raise ConfigError.at(
            key, Kind.NOT_FOUND, f"`{key}`: validation has no '{metric}': {suggestion(metric, metrics)}"
        )
    return metrics.get(metric, math.nan)
