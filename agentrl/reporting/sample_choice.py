"""Selects the rollouts that are saved as text: the same tasks at the first, middle and last validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from agentrl.errors import DataError
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Group, Rollout
from agentrl.types.task import Task


class Sample(NamedTuple):
    """One rollout. `number` is its index in its group. `step` is None if the rollout is not from a training run."""

    task: Task
    rollout: Rollout
    number: int
    step: int | None = None


def instructive(groups: Sequence[Group], step: int | None = None) -> list[Sample]:
    """Return the best, the median and the worst rollout, ranked by reward, then by number of turns."""
    every = (
        Sample(group.task, rollout, number, step) for group in groups for number, rollout in enumerate(group.rollouts)
    )
    ranked = sorted(every, key=_rank, reverse=True)
    places = sorted({0, len(ranked) // 2, len(ranked) - 1}) if ranked else []
    return [ranked[place] for place in places]


def over_time(last: Sequence[Sample], store: TrajectoryStore) -> Iterator[Sample]:
    """Yield the samples of `last`, each after the rollouts of its task from the first and the middle step of `store`.

    These rollouts have the same `number` as the sample. A step without such a rollout is skipped.
    """
    steps = store.steps
    earlier = sorted({steps[0], steps[len(steps) // 2]} - {steps[-1]}) if steps else []
    for sample in last:
        for step in earlier:
            try:
                stored = store.rollout(step, sample.task.uid, sample.number)
            except DataError:  # the step had other tasks, or its file is damaged: skip the step
                continue
            yield Sample(stored.task, stored.rollout, stored.number, step)
        yield sample._replace(step=steps[-1]) if steps else sample


def _rank(sample: Sample) -> tuple[float, int]:
    return sample.rollout.reward, sum(trajectory.num_turns for trajectory in sample.rollout.trajectories)
