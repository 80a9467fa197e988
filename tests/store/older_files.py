"""Rollout files as earlier versions of agentrl wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.store.schema import BY_NAME, OPERATION, READABLE, VERSION_KEY

NUM_NEW_LEAVES = 4
"""Leaves that version 3 added, the last of its schema."""


def as_version_2(path: Path) -> None:
    """Rewrite a file without the values that version 2 did not save; the remaining seals are unchanged."""
    _rewrite(path, "2")


def as_version_7(path: Path) -> None:
    """Rewrite a file without the column that version 8 added; the remaining seals are unchanged."""
    _rewrite(path, "7")


def as_version_6(path: Path) -> None:
    """Rewrite a file without the field that version 7 added; the remaining seals are unchanged."""
    _rewrite(path, "6")


def as_version_5(path: Path) -> None:
    """Rewrite a file without what later versions added; the remaining seals are unchanged."""
    _rewrite(path, "5")


def as_version_4(path: Path) -> None:
    """Rewrite a file without the columns that later versions added; the remaining seals are unchanged."""
    _rewrite(path, "4")


def as_version_3(path: Path) -> None:
    """Rewrite a file with the maps of version 3, where version 4 has lists; the seals are unchanged."""
    _rewrite(path, "3")


def _rewrite(path: Path, version: str) -> None:
    table = pq.read_table(path, partitioning=None)
    metadata = {**table.schema.metadata, VERSION_KEY.encode(): version.encode()}
    schema = READABLE[version].with_metadata(metadata)
    rows = [{**row, "seals": _seals(row["seals"], version)} for row in table.to_pylist()]
    rows = rows if version in "4567" else [_as_maps(row) for row in rows]
    names = schema.field("trajectories").type.value_type.names
    rows = [_with_fields(row, names) for row in rows]
    if version == "2":
        rows = [{**row, "seals": row["seals"][:-NUM_NEW_LEAVES]} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def _seals(seals: list[int], version: str) -> list[int]:
    """The seals of an older version. The last are those of `weight`, `excluded`, `operations` and `facts`."""
    seals = seals[:-1]
    if version == "7":
        return seals
    excluded, operations = seals[-1 - len(OPERATION)], seals[-len(OPERATION) :]
    before = seals[: -2 - len(OPERATION)]
    return before + ([] if version in "234" else [excluded]) + (operations if version == "6" else [])


def _as_maps(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, **{name: [(item["name"], item["value"]) for item in row[name]] for name in BY_NAME}}


def _with_fields(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    trajectories = [{name: one[name] for name in names} for one in row["trajectories"]]
    return {**row, "trajectories": trajectories}
