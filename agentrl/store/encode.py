"""Conversion of rollouts to file rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa

from agentrl.errors import DataError
from agentrl.store.checksums import seals
from agentrl.store.columns import arrow_array
from agentrl.store.credited import samples_by_rollout
from agentrl.store.schema import BY_NAME, EXCLUDED, FACTS, JSON_OF_TASK, SCHEMA, SCORES, SEALS, TASK
from agentrl.store.text import write_json
from agentrl.types.excluded import Excluded
from agentrl.types.rollout import Group, Rollout
from agentrl.types.sample import Sample
from agentrl.types.task import Task
from agentrl.types.trajectory import Segment

ROWS_PER_BATCH = 128
"""Rollouts per row group. Readers read or skip a row group as a unit.

Row groups are small so that writing does not need a copy of a complete step in memory.
"""


@dataclass(frozen=True, slots=True)
class _Row:
    step: int
    split: str
    number: int
    task: Mapping[str, Any]  # column -> value; JSON columns are already text
    rollout: Rollout
    trajectories: list[_History]
    excluded: Excluded | None


@dataclass(frozen=True, slots=True)
class _History:
    """A trajectory with its scores. The attributes are named like the fields of the schema."""

    messages: str
    segments: Sequence[Segment]
    advantages: Sequence[float] | None = None
    old_logprobs: Sequence[float] | None = None
    ref_logprobs: Sequence[float] | None = None
    values: Sequence[float] | None = None
    kl_coef: float = 0.0
    weight: float = 1.0


class _Named(NamedTuple):
    """An item of a column such as `rewards`."""

    name: str
    value: float


def batches(
    step: int,
    split: str,
    groups: Sequence[Group],
    samples: Sequence[Sample],
    excluded: Mapping[str, Excluded] = {},
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a step in batches.

    Args:
        excluded: rollout id (`uid/number`) -> why the rollout was not trained on. For rollouts that are not listed,
            `Rollout.excluded` is saved.

    Raises:
        DataError: a value does not fit its column; the message names step or task, and column.
    """
    rows = _rows(step, split, groups, samples, excluded)
    fields = [field for field in SCHEMA if field.name != SEALS]
    while batch := list(islice(rows, ROWS_PER_BATCH)):
        columns = [_column(field, _values(field.name, batch), step) for field in fields]
        yield pa.RecordBatch.from_arrays([*columns, seals(columns).cast(SCHEMA.field(SEALS).type)], schema=SCHEMA)


def _values(column: str, rows: Sequence[_Row]) -> list[Any]:
    """Return the values of a column, one per row. `Any` stands for the type of the column in the schema."""
    if column in TASK:
        return [row.task[column] for row in rows]
    if column == FACTS:
        return [_json(row.task["uid"], FACTS, row.rollout.facts) for row in rows]
    values = list(map(attrgetter(_OF_ROW.get(column, f"rollout.{column}")), rows))
    return [list(map(_Named._make, each.items())) for each in values] if column in BY_NAME else values


_OF_ROW = {
    "step": "step",
    "split": "split",
    "rollout": "number",
    "trajectories": "trajectories",
    EXCLUDED: "excluded",
}
"""Name of a column that is not an attribute of `Rollout` -> attribute of `_Row` with the column's value."""

_OF_SAMPLE = ("advantages", *SCORES, "kl_coef")


def _column(field: pa.Field, values: list[Any], step: int) -> pa.Array:
    try:
        return arrow_array(values, field)
    except (pa.ArrowException, OverflowError, TypeError, AttributeError) as error:
        line = " ".join(str(error).split())
        raise DataError(f"step {step}: column '{field.name}' cannot hold a value: {line}") from error


def _rows(
    step: int, split: str, groups: Sequence[Group], samples: Sequence[Sample], excluded: Mapping[str, Excluded]
) -> Iterator[_Row]:
    credited = samples_by_rollout(groups, samples)
    for group in groups:
        task = _task(group.task)
        for number, rollout in enumerate(group.rollouts):
            histories = _histories(group.uid, rollout, next(credited))
            reason = excluded.get(f"{group.uid}/{number}", rollout.excluded)
            yield _Row(step, split, number, task, rollout, histories, reason)
    next(credited, None)  # raises ValueError if a sample belongs to no trajectory


def _task(task: Task) -> dict[str, Any]:
    values = {name: getattr(task, name) for name in TASK}
    return {name: _json(task.uid, name, value) if name in JSON_OF_TASK else value for name, value in values.items()}


def _histories(uid: str, rollout: Rollout, samples: Sequence[Sample | None]) -> list[_History]:
    return [
        _History(
            _json(uid, "messages", trajectory.messages),
            trajectory.segments,
            weight=trajectory.weight,
            **({name: getattr(sample, name) for name in _OF_SAMPLE} if sample else {}),
        )
        for trajectory, sample in zip(rollout.trajectories, samples, strict=True)
    ]


def _json(uid: str, name: str, value: object) -> str:
    try:
        return write_json(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"task '{uid}': its {name} cannot be saved as JSON: {error}") from error
