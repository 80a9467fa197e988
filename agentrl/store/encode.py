"""From rollouts to rows of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from agentrl.errors import DataError
from agentrl.samples import Sample
from agentrl.store.columns import arrow_array
from agentrl.store.credited import Advantages, advantages_of
from agentrl.store.schema import JSON_OF_TASK, SCHEMA, SEALS, TASK
from agentrl.store.seal import seals
from agentrl.store.text import write_json
from agentrl.task import Task
from agentrl.trajectory import Group, Rollout, Segment

ROWS_PER_BATCH = 128
"""Rollouts read or skipped as one. Few, so that a step of long conversations is never in memory twice."""


@dataclass(frozen=True, slots=True)
class _Row:
    place: dict[str, Any]
    task: dict[str, Any]  # the task's own values, but JSON as text
    rollout: Rollout
    trajectories: list[_History]

    def value(self, column: str) -> Any:
        """Any: what the schema says of the column."""
        if column == "trajectories":
            return self.trajectories
        holder = self.place if column in self.place else self.task
        return holder[column] if column in holder else getattr(self.rollout, column)


@dataclass(frozen=True, slots=True)
class _History:
    """A trajectory, as the schema names its parts."""

    messages: str
    segments: Sequence[Segment]
    advantages: Advantages


def batches(step: int, split: str, groups: Sequence[Group], samples: Sequence[Sample]) -> Iterator[pa.RecordBatch]:
    """The rows of a step.

    Raises:
        DataError: a value that a row cannot hold; names step or task, and column.
    """
    rows = _rows(step, split, groups, samples)
    while batch := list(islice(rows, ROWS_PER_BATCH)):
        fields = [field for field in SCHEMA if field.name != SEALS]
        columns = [_column(field, [row.value(field.name) for row in batch], step) for field in fields]
        yield pa.RecordBatch.from_arrays([*columns, seals(columns).cast(SCHEMA.field(SEALS).type)], schema=SCHEMA)


def _column(field: pa.Field, values: list[Any], step: int) -> pa.Array:
    try:
        return arrow_array(values, field)
    except (pa.ArrowException, OverflowError, TypeError, AttributeError) as error:
        line = " ".join(str(error).split())
        raise DataError(f"step {step}: column '{field.name}' cannot hold a value: {line}") from error


def _rows(step: int, split: str, groups: Sequence[Group], samples: Sequence[Sample]) -> Iterator[_Row]:
    advantages = advantages_of(groups, samples)
    for group in groups:
        task = _task(group.task)
        for number, rollout in enumerate(group.rollouts):
            place: dict[str, Any] = {"step": step, "split": split, "rollout": number}
            yield _Row(place, task, rollout, _histories(group.uid, rollout, next(advantages)))
    next(advantages, None)  # no sample is left, or it says so


def _task(task: Task) -> dict[str, Any]:
    values = {name: getattr(task, name) for name in TASK}
    return {name: _json(task.uid, name, value) if name in JSON_OF_TASK else value for name, value in values.items()}


def _histories(uid: str, rollout: Rollout, advantages: Sequence[Advantages]) -> list[_History]:
    return [
        _History(_json(uid, "messages", trajectory.messages), trajectory.segments, credited)
        for trajectory, credited in zip(rollout.trajectories, advantages, strict=True)
    ]


def _json(uid: str, name: str, value: object) -> str:
    try:
        return write_json(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"task '{uid}': its {name} cannot be kept as JSON: {error}") from error
