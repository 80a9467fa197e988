"""From rows of a file back to rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from agentrl.messages import Message
from agentrl.store.columns import python_values, sliced
from agentrl.store.schema import JSON_OF_TASK, ROLLOUT, SEALS, TASK
from agentrl.store.stored import StoredRollout
from agentrl.store.text import read_json
from agentrl.task import Task
from agentrl.trajectory import Author, Outcome, Rollout, Segment, Stop, ToolCall, Trajectory, TurnReward, VersionSpan

Columns = Mapping[str, Sequence[Any]]
"""Values by column, one a row. Any: each column has its own type, which the schema says."""


def stored_rollouts(table: pa.Table) -> Iterator[StoredRollout]:
    """The rollouts of a table, in its order. Siblings share one `Task`.

    Raises:
        ValueError: the values contradict each other.
    """
    arrays = {name: column.combine_chunks() for name, column in zip(table.column_names, table.columns, strict=True)}
    histories = _histories(arrays.pop("trajectories", None)) or [[]] * table.num_rows
    columns = {name: python_values(array) for name, array in arrays.items() if name != SEALS}
    places = zip(columns["step"], columns["split"], columns["rollout"], strict=True)
    rows = zip(places, _tasks(columns), _rollouts(columns), histories, strict=True)
    for place, task, rollout, history in rows:
        rollout.trajectories = [trajectory for trajectory, _ in history]
        yield StoredRollout(*place, task, rollout, [advantages for _, advantages in history])


def _tasks(columns: Columns) -> Iterator[Task]:
    """One a row; a row that says the same as the one before has the same."""
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
    """One a row, without its trajectories."""
    names = [name for name in ROLLOUT if name in columns]
    for values in zip(*(_READ.get(name, iter)(columns[name]) for name in names), strict=True):
        yield Rollout([], **dict(zip(names, values, strict=True)))


def _turn_rewards(rows: Sequence[Any]) -> Iterator[list[TurnReward]]:
    return ([TurnReward(*fields) for fields in row] for row in rows)


def _tool_calls(rows: Sequence[Any]) -> Iterator[list[ToolCall]]:
    return (
        [ToolCall(name, arguments, result, Outcome(outcome), *rest) for name, arguments, result, outcome, *rest in row]
        for row in rows
    )


_READ: dict[str, Callable[[Sequence[Any]], Iterator[Any]]] = {
    "stop": lambda texts: map(Stop, texts),
    "turn_rewards": _turn_rewards,
    "tool_calls": _tool_calls,
}


def _histories(array: pa.ListArray | None) -> list[list[tuple[Trajectory, list[float] | None]]]:
    """For each row its trajectories, each with its advantages; fields that were not read are empty."""
    if array is None:
        return []
    structs = array.values
    fields = {field.name: python_values(part) for field, part in zip(structs.type, structs.flatten(), strict=True)}
    nothing = [None] * len(structs)
    trajectories = map(_trajectory, fields.get("segments", nothing), fields.get("messages", nothing))
    return sliced(array, list(zip(trajectories, fields.get("advantages", nothing), strict=True)))


def _trajectory(segments: Sequence[Any] | None, messages: str | None) -> Trajectory:
    read = cast(list[Message], read_json(messages)) if messages else []
    return Trajectory([_segment(*fields) for fields in segments or ()], read)


def _segment(
    author: str,
    token_ids: list[int],
    logprobs: list[float] | None,
    spans: list[tuple[int, int]],
    temperature: float,
    media: list[str],
) -> Segment:
    versions = [VersionSpan(*span) for span in spans]
    return Segment(Author(author), token_ids, logprobs, versions or (), temperature, media or ())
