"""The validator: rolls held-out tasks out under the current weights."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from agentrl.rollouts.metrics import rollout_metrics
from agentrl.task import Task
from agentrl.trajectory import Group

Collect = Callable[[Sequence[Task]], Awaitable[list[Group]]]


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
