"""Filter and sort rollouts: parse the URL's query, and return positions in the summary table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agentrl.errors import DataError, UnknownNameError, suggestion
from agentrl.store.layout import EXCLUDED_SPLIT
from agentrl.store.text import writable

Value = str | int | float

_EQUAL: Mapping[str, Callable[[str], Value]] = {
    "split": writable,
    "source": writable,
    "stop": writable,
    "excluded": writable,
    "uid": writable,
    "index": int,
    "number": int,
    "step": int,
}
_BOUNDS: Mapping[str, tuple[str, Callable[[str], Value]]] = {
    "step_min": ("step", int),
    "step_max": ("step", int),
    "reward_min": ("reward", float),
    "reward_max": ("reward", float),
}
_CALL = {"tool": "tools", "outcome": "outcomes"}
_ASK_FOR_DROPPED = {"split", "excluded", "uid"}
"""With any of these filters, the rollouts of dropped groups are listed too."""

NAMES = (*_EQUAL, *_BOUNDS, *_CALL, "failed", "sort")


@dataclass(frozen=True)
class Filter:
    """Conditions on rows; a row must satisfy all of them.

    Attributes:
        equal: (column, value) pairs.
        bounds: triples (column, is_lower, bound). `is_lower` is True for a lower bound and False for an upper bound. A
            value equal to the bound is allowed.
        call: (column, value) pairs for `tools` and `outcomes`; one tool call of the row must match all pairs.
        failed: only rollouts with an error or an infrastructure failure.
        dropped: also rollouts of dropped groups, which no step trained on.
        sort: a column, with prefix `-` for descending. "" sorts by step, newest first; within a step, in saved order.
    """

    equal: tuple[tuple[str, Value], ...] = ()
    bounds: tuple[tuple[str, bool, Value], ...] = ()
    call: tuple[tuple[str, str], ...] = ()
    failed: bool = False
    dropped: bool = False
    sort: str = ""

    def rows(self, table: pa.Table, also: pa.Array | None = None) -> pa.Array:
        """Return the positions of matching rows, sorted.

        Args:
            also: an additional mask of rows.

        Raises:
            UnknownNameError: the sort column does not exist.
        """
        masks = list(self._masks(table)) + ([] if also is None else [also])
        if not masks:
            found = pa.array(np.arange(table.num_rows))
        else:
            found = pc.indices_nonzero(pc.fill_null(reduce(pc.and_, masks), False))
        return self._sorted(table, found)

    def _masks(self, table: pa.Table) -> Iterator[pa.Array]:
        if not self.dropped:
            yield pc.not_equal(_column(table, "split"), EXCLUDED_SPLIT)
        for name, value in self.equal:
            yield pc.equal(_column(table, name), pa.scalar(value, table.schema.field(name).type))
        for name, is_least, value in self.bounds:
            yield (pc.greater_equal if is_least else pc.less_equal)(_column(table, name), value)
        if self.failed:
            yield _column(table, "failed")
        if self.call:
            yield self._with_call(table)

    def _with_call(self, table: pa.Table) -> pa.Array:
        lists = {name: _column(table, name) for name, _ in self.call}
        masks = [pc.equal(lists[name].values, value) for name, value in self.call]
        offsets = np.asarray(next(iter(lists.values())).offsets)
        hits = np.concatenate([[0], np.cumsum(reduce(pc.and_, masks).to_numpy(zero_copy_only=False))])
        return pa.array(np.diff(hits[offsets]) > 0)

    def _sorted(self, table: pa.Table, found: pa.Array) -> pa.Array:
        name = self.sort.removeprefix("-")
        if not name:
            return found
        if name not in table.column_names or pa.types.is_list(table.schema.field(name).type):
            raise UnknownNameError(f"cannot sort by '{name}': {suggestion(name, table.column_names)}")
        keys = pa.table({"key": _column(table, name).take(found), "place": found})
        direction = "descending" if self.sort.startswith("-") else "ascending"
        return found.take(pc.sort_indices(keys, [("key", direction), ("place", "ascending")]))


def read_filter(words: Mapping[str, str]) -> Filter:
    """Parse the filter in a URL's query; empty values are ignored.

    Raises:
        UnknownNameError: a name is not in `NAMES`.
        DataError: a value has the wrong type.
    """
    given = {name: value for name, value in words.items() if value}
    for name in given.keys() - set(NAMES):
        raise UnknownNameError(f"there is no filter '{name}': {suggestion(name, NAMES)}")
    return Filter(
        equal=tuple((name, _value(name, given[name], kind)) for name, kind in _EQUAL.items() if name in given),
        bounds=tuple(
            (column, name.endswith("_min"), _value(name, given[name], kind))
            for name, (column, kind) in _BOUNDS.items()
            if name in given
        ),
        call=tuple((column, writable(given[name])) for name, column in _CALL.items() if name in given),
        failed="failed" in given,
        dropped=not _ASK_FOR_DROPPED.isdisjoint(given),
        sort=given.get("sort", ""),
    )


def _value(name: str, text: str, kind: Callable[[str], Value]) -> Value:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or (isinstance(value, int) and abs(value) >= 2**63) or value != value:
        raise DataError(f"'{name}' must be a number, not '{text}'")
    return value


def _column(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array. A snapshot's table has at most one chunk."""
    return table[name].combine_chunks()
