"""Row filters: bounds on the values of columns. Row groups whose statistics exclude a match are not read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agentrl.errors import UnknownNameError, suggestion
from agentrl.store.schema import SCHEMA, TRAJECTORY, WEIGHT

Value: TypeAlias = str | int | float
Bounds: TypeAlias = tuple[Value | None, Value | None]
"""Minimum and maximum value, both inclusive; None means no bound."""

ALWAYS = ("step", "split", "rollout", "uid", "stop")
"""Columns that are always read: those that identify a rollout, and `stop`, which a `Rollout` requires."""

_CALL = "tool_calls.list.element."
_TRAJECTORY = "trajectories.list.element."
_SHORT = {f"trajectories.{part.name}": f"{_TRAJECTORY}{part.name}" for part in TRAJECTORY}
FILTERS = ("uid", "rollout", "data_source", "stop", "reward", f"{_CALL}name", f"{_CALL}outcome")
"""Columns for which files store statistics."""


@dataclass(frozen=True, slots=True)
class Query:
    """Filter for rollouts.

    Attributes:
        rollout: column -> bounds of the rollout's value.
        call: field of a tool call -> bounds. At least one call of the rollout must be within all these bounds.
    """

    rollout: Mapping[str, Bounds] = field(default_factory=dict)
    call: Mapping[str, Bounds] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """The Parquet columns that `rows` needs."""
        return [*self.rollout, *(f"{_CALL}{name}" for name in self.call)]

    def may_match(self, group: pq.RowGroupMetaData) -> bool:
        """Whether rows of the row group `group` may match, according to the group's statistics."""
        filters = {**self.rollout, **{f"{_CALL}{name}": bounds for name, bounds in self.call.items()}}
        parts = {part.path_in_schema: part for part in map(group.column, range(group.num_columns))}
        return all(_overlap(parts[name].statistics, bounds) for name, bounds in filters.items())

    def rows(self, table: pa.Table) -> pa.Array:
        """Return the positions of the matching rows of `table`."""
        every = pa.array([True] * table.num_rows, pa.bool_())
        masks = [_within(table[name].combine_chunks(), bounds) for name, bounds in self.rollout.items()]
        if self.call:
            masks.append(self._with_call(table["tool_calls"].combine_chunks()))
        return pc.indices_nonzero(reduce(pc.and_, masks, every))

    def _with_call(self, calls: pa.ListArray) -> pa.Array:
        flat = pc.list_flatten(calls)
        masks = [_within(pc.struct_field(flat, name), bounds) for name, bounds in self.call.items()]
        rows = pc.list_parent_indices(calls).filter(reduce(pc.and_, masks))
        return pc.is_in(pa.array(range(len(calls)), rows.type), value_set=rows)


def leaves(columns: Collection[str] | None) -> list[str] | None:
    """Return the Parquet columns for names such as `rewards` or `trajectories.messages`; None for all columns.

    Raises:
        UnknownNameError: a column does not exist.
    """
    if columns is None:
        return None
    for name in columns:
        if name not in _SHORT and name not in SCHEMA.names:
            hint = suggestion(name, [*SCHEMA.names, *_SHORT])
            raise UnknownNameError(f"trajectories have no column '{name}': {hint}")
    derived = ["rewards"] if "reward" in columns else []
    # read the weight with any field of a trajectory: weight 0 means that the trajectory is not trained on
    derived += [_SHORT[f"trajectories.{WEIGHT}"]] if any(name in _SHORT for name in columns) else []
    return [*ALWAYS, *derived, *(_SHORT.get(name, name) for name in columns)]


def _overlap(statistics: pq.Statistics | None, bounds: Bounds) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True
    low, high = bounds
    return not ((low is not None and statistics.max < low) or (high is not None and statistics.min > high))


def _within(array: pa.Array, bounds: Bounds) -> pa.Array:
    low, high = bounds
    masks = [] if low is None else [pc.greater_equal(array, low)]
    masks += [] if high is None else [pc.less_equal(array, high)]
    return reduce(pc.and_, masks)
