"""Validation: rolls held-out tasks out under the current weights; the metric that `stop_when` and `save_best` read."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from agentrl.attempt import Group, Outcome, Rollout, Stop, ToolCall
from agentrl.errors import ConfigError, suggestion
from agentrl.rollouts.metrics import rollout_metrics
from agentrl.task import Task

Collect = Callable[[Sequence[Task]], Awaitable[list[Group]]]

_REWARDS = "val/reward/"  # a reward function names its parts when it scores, not before


class Validator:
    """Validates a policy on fixed tasks, each sampled under the same seeds every time.

    Args:
        publish: puts the weights of a version into the engine; does nothing where they are already there.
        success_threshold: scores from here on are a success.
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
        """(metrics named `val/...`, the groups behind them) of the weights after `step`."""
        await self._publish(step)
        groups = await self._collect(self._tasks)
        metrics = rollout_metrics(groups, self._success_threshold) | {"num_tasks": float(len(groups))}
        return {f"val/{name}": value for name, value in metrics.items()}, groups


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
