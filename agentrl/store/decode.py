"""Conversion of file rows to rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, TypeVar, cast

import pyarrow as pa
from pydantic import JsonValue

from agentrl.store.columns import python_values, sliced, text_values
from agentrl.store.schema import (
    BY_NAME,
    EXCLUDED,
    FACTS,
    JSON_OF_TASK,
    OPERATIONS,
    ROLLOUT,
    SCORES,
    SEALS,
    TASK,
    WEIGHT,
)
from agentrl.store.stored import Scores, StoredRollout
from agentrl.store.text import read_json
from agentrl.types.excluded import Excluded
from agentrl.types.messages import Message
from agentrl.types.operation import Operation, OperationKind
from agentrl.types.rollout import Outcome, Rollout, Stop, ToolCall, TurnReward
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

T = TypeVar("T")

Columns = Mapping[str, Sequence[Any]]
"""Column -> its values, one per row. `Any`: the schema defines the type of each column."""

Read = Callable[[pa.Array], Iterable[Any]]
"""Function that converts an array to values. Used for columns where `python_values` is not enough."""


def stored_rollouts(table: pa.Table) -> Iterator[StoredRollout]:
    """Yield the rollouts of a table, in row order. Consecutive rollouts of the same task share one `Task` object.

    Raises:
        ValueError: a value is invalid, or the values contradict each other.
    """
    arrays = {name: column.combine_chunks() for name, column in zip(table.column_names, table.columns, strict=True)}
    histories = _histories(arrays.pop("trajectories", None)) or [[]] * table.num_rows
    columns = {name: _READ.get(name, python_values)(array) for name, array in arrays.items() if name != SEALS}
    places = zip(columns["step"], columns["split"], columns["rollout"], strict=True)
    reasons = columns.get(EXCLUDED, [None] * table.num_rows)
    rows = zip(places, _tasks(columns), _rollouts(columns), histories, reasons, strict=True)
    for place, task, rollout, history, reason in rows:
        rollout.trajectories = [trajectory for trajectory, _, _ in history]
        advantages, scores = [each for _, each, _ in history], [each for _, _, each in history]
        yield StoredRollout(*place, task, rollout, advantages, scores, reason)


def _tasks(columns: Columns) -> Iterator[Task]:
    """Yield one task per row. If two consecutive rows have equal task columns, they get the same object."""
    names = [name for name in TASK if name in columns]
    last, task = None, None
    for values in zip(*(columns[name] for name in names), strict=True):
        if task is None or values != last:
            task, last = _task(dict(zip(names, values, strict=True))), values
        yield task


def _task(values: dict[str, Any]) -> Task:
    read: dict[str, Any] = {name: read_json(value) if name in JSON_OF_TASK else value for name, value in values.items()}
    return Task(**{"messages": [], **read})


def _rollouts(columns: Columns) -> Iterator[Rollout]:
    """Yield one rollout per row, without its trajectories."""
    names = [name for name in (*ROLLOUT, OPERATIONS, FACTS) if name in columns]
    for values in zip(*(columns[name] for name in names), strict=True):
        yield Rollout([], **dict(zip(names, values, strict=True)))


def _histories(array: pa.ListArray | None) -> list[list[tuple[Trajectory, list[float] | None, Scores]]]:
    """Return for each row its trajectories, each with advantages and scores. Fields that were not read are empty."""
    if array is None:
        return []
    structs = array.values
    fields = {field.name: part for field, part in zip(structs.type, structs.flatten(), strict=True)}
    segments = _segments(fields["segments"]) if "segments" in fields else repeat((), len(structs))
    messages = map(_messages, python_values(fields["messages"])) if "messages" in fields else repeat((), len(structs))
    advantages = python_values(fields["advantages"]) if "advantages" in fields else repeat(None, len(structs))
    weights = python_values(fields[WEIGHT]) if WEIGHT in fields else repeat(1.0, len(structs))
    scores = _scores(fields, len(structs))
    return sliced(array, list(zip(map(Trajectory, segments, messages, weights), advantages, scores, strict=True)))


def _scores(fields: Mapping[str, pa.Array], count: int) -> list[Scores]:
    read = {name: python_values(fields[name]) for name in (*SCORES, "kl_coef") if name in fields}
    return [Scores(**{name: values[index] for name, values in read.items()}) for index in range(count)]


def _messages(text: str) -> list[Message]:
    return cast(list[Message], read_json(text))


def _lists_of(kind: Callable[..., T], array: pa.ListArray, /, **read: Read) -> list[list[T]]:
    """Convert each struct in the lists of `array` to an object, by calling `kind` with the struct's fields in order.

    Args:
        read: field name -> function that converts this field. All other fields are converted by `python_values`.
    """
    parts = zip(array.values.type, array.values.flatten(), strict=True)
    return sliced(array, list(map(kind, *(read.get(field.name, python_values)(part) for field, part in parts))))


def _segments(array: pa.ListArray) -> list[list[Segment]]:
    return _lists_of(
        Segment,
        array,
        author=partial(text_values, meaning=Author),
        policy_versions=partial(_lists_of, VersionSpan),
        media=lambda part: [hashes or () for hashes in python_values(part)],
    )


def _facts(array: pa.Array) -> list[dict[str, JsonValue]]:
    """Convert JSON texts to dictionaries.

    Raises:
        ValueError: a text is not a JSON object.
    """
    found = list(map(read_json, python_values(array)))
    if not all(isinstance(each, dict) for each in found):
        raise ValueError(f"column '{FACTS}': expected JSON objects")
    return cast(list[dict[str, JsonValue]], found)


def _by_name(array: pa.Array) -> list[dict[str, float]]:
    """Convert lists of {name, value}, or maps, to dictionaries."""
    return list(map(dict, python_values(array)))


_READ: dict[str, Callable[[pa.Array], list[Any]]] = {
    **dict.fromkeys(BY_NAME, _by_name),
    "stop": partial(text_values, meaning=Stop),
    EXCLUDED: partial(text_values, meaning=Excluded),
    "turn_rewards": partial(_lists_of, TurnReward),
    OPERATIONS: partial(_lists_of, Operation, kind=partial(text_values, meaning=OperationKind)),
    FACTS: _facts,
    "tool_calls": partial(_lists_of, ToolCall, outcome=partial(text_values, meaning=Outcome)),
}
