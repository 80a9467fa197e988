"""Match the saved rollouts of two sides (runs, checkpoints or steps) by task."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agentrl.replay.base import Key, Replay, key_of
from agentrl.store import StoredRollout
from agentrl.types.rollout import Outcome, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Trajectory

TaskKey: TypeAlias = tuple[str, int, str]
"""Identifies a task in any run: (data source, index, prompt as JSON)."""

Segments: TypeAlias = "Sequence[tuple[Author, array[int]]]"
"""(author, token ids) of each segment."""

COLUMNS = (
    *("messages", "data_source", "index", "rewards", "tool_calls", "infra_failed", "seed"),
    "trajectories.segments",
)
"""The columns that `attempts` reads."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One rollout.

    Attributes:
        score: None if the rollout failed or has no score; mean scores exclude such rollouts.
        calls: (tool, outcome) of each call.
        segments: the segments of all trajectories.
    """

    key: Key
    seed: int
    score: float | None
    failed: bool
    stop: Stop
    calls: Sequence[tuple[str, Outcome]]
    num_turns: int
    num_response_tokens: int
    segments: Segments


@dataclass(frozen=True, slots=True)
class Pair:
    """One task that both sides attempted."""

    key: TaskKey
    sides: tuple[Sequence[Attempt], Sequence[Attempt]]

    def scores(self, side: int) -> list[float]:
        """Scores of the rollouts on one side, without unscored rollouts."""
        return [attempt.score for attempt in self.sides[side] if attempt.score is not None]

    @property
    def scored(self) -> bool:
        """Whether both sides have at least one score."""
        return bool(self.scores(0) and self.scores(1))


def attempts(replay: Replay) -> dict[TaskKey, list[Attempt]]:
    """All rollouts of a run, by task."""
    by_task: dict[TaskKey, list[Attempt]] = defaultdict(list)
    for stored in replay.run.rollouts(COLUMNS):
        by_task[task_key(stored.task)].append(_attempt(stored, replay.score(stored)))
    return dict(by_task)


def matched(ours: Mapping[TaskKey, Sequence[Attempt]], theirs: Mapping[TaskKey, Sequence[Attempt]]) -> list[Pair]:
    """The tasks that both sides have, in the order of the first side."""
    return [Pair(key, (ours[key], theirs[key])) for key in ours if key in theirs]


def task_key(task: Task) -> TaskKey:
    """Return the key of a task: equal for the same dataset row in every run."""
    return task.data_source, task.index, json.dumps(task.messages, sort_keys=True)


def _attempt(stored: StoredRollout, score: float | None) -> Attempt:
    rollout = stored.rollout
    return Attempt(
        key_of(stored),
        rollout.seed,
        None if rollout.failed else score,
        rollout.failed,
        rollout.stop,
        [(call.name, call.outcome) for call in rollout.tool_calls],
        sum(trajectory.num_turns for trajectory in rollout.trajectories),
        sum(trajectory.num_response_tokens for trajectory in rollout.trajectories),
        [segment for trajectory in rollout.trajectories for segment in _segments(trajectory)],
    )


def _segments(trajectory: Trajectory) -> Segments:
    return [(segment.author, array("i", segment.token_ids)) for segment in trajectory.segments]
