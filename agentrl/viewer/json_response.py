"""JSON responses for the page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import Response

from agentrl.store.text import original
from agentrl.types.rollout import GUARD
from agentrl.viewer.index import Snapshot
from agentrl.viewer.summary import REWARD

MAX_CHOICES = 500
"""Maximum number of choices per filter."""


def json_response(value: object, status: int = 200) -> Response:
    """Encode a value as JSON. Non-finite numbers become strings; lone surrogates are escaped."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")


def shown_rows(table: pa.Table, rows: pa.Array) -> list[Mapping[str, object]]:
    """Return rows of a summary as dictionaries."""
    taken = table.take(rows).to_pylist()
    return [{name: _shown(value) for name, value in row.items()} for row in taken]


_choices: WeakKeyDictionary[Snapshot, dict[str, object]] = WeakKeyDictionary()  # weak: does not keep old snapshots


def shown_choices(snapshot: Snapshot) -> dict[str, object]:
    """Return the choices of each filter, and the table's columns (see `_columns`). Results are cached by snapshot."""
    if (known := _choices.get(snapshot)) is None:
        known = _choices[snapshot] = _choices_of(snapshot.table)
    return known


def _choices_of(table: pa.Table) -> dict[str, object]:
    values = {name: _distinct(table[name]) for name in ("split", "source", "stop", "excluded")}
    lists = {name: _distinct(pc.list_flatten(table[name])) for name in ("tools", "outcomes")}
    steps = pc.min_max(table["step"]).as_py()
    return {**values, **lists, "steps": [steps["min"], steps["max"]], **_columns(table)}


def _columns(table: pa.Table) -> dict[str, object]:
    """Return `columns`, and `idle`: the columns of reward guards (see `GUARD`) that flagged no rollout."""
    guards = [name for name in table.column_names if name.startswith(f"{REWARD}{GUARD}")]
    idle = [name for name in guards if not pc.any(pc.not_equal(table[name], 0)).as_py()]
    return {"columns": table.column_names, "idle": idle}


def _distinct(column: pa.ChunkedArray) -> list[str]:
    return sorted(original(text) for text in pc.unique(column).to_pylist() if text is not None)[:MAX_CHOICES]


def _shown(value: object) -> object:
    if isinstance(value, str):
        return original(value)
    return [_shown(item) for item in value] if isinstance(value, list) else value


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(inner) for inner in value]
    return value
