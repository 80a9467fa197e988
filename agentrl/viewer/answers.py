"""What the page is told, as JSON that any browser reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import Response

from agentrl.store.text import original
from agentrl.viewer.index import Snapshot

MAX_CHOICES = 500
"""Names of one kind that a filter offers."""


def json_response(value: object, status: int = 200) -> Response:
    """Numbers that are not finite are their names as text; half a surrogate pair stays what it is."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")


def shown_rows(table: pa.Table, rows: pa.Array) -> list[Mapping[str, object]]:
    """These rows of a summary."""
    taken = table.take(rows).to_pylist()
    return [{name: _shown(value) for name, value in row.items()} for row in taken]


@lru_cache(maxsize=2)  # one for each run
def shown_choices(snapshot: Snapshot) -> dict[str, object]:
    """What there is to choose from in each filter, and the columns there are to sort by."""
    table = snapshot.table
    values = {name: _distinct(table[name]) for name in ("split", "source", "stop")}
    lists = {name: _distinct(pc.list_flatten(table[name])) for name in ("tools", "outcomes")}
    steps = pc.min_max(table["step"]).as_py()
    return {**values, **lists, "steps": [steps["min"], steps["max"]], "columns": table.column_names}


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
