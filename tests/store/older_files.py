"""Rollout files as earlier versions of agentrl wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.store.schema import BY_NAME, OPERATION, READABLE, VERSION_KEY

NUM_NEW_LEAVES = 4
"""Leaves that version 3 added at the end of the schema."""


def as_version_2(path: Path) -> None:
    """Rewrite a file without the values that version 2 did not save; the remaining seals are unchanged."""
    _rewrite(path, "2")


def as_version_5(path: Path) -> None:
    """Rewrite a file without the column that version 6 added; the remaining seals are unchanged."""
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
    num_dropped = len(OPERATION) + (version != "5")  # the last seals: `operations`, and before them `excluded`
    rows = [{**row, "seals": row["seals"][:-num_dropped]} for row in table.to_pylist()]
    rows = rows if version in "45" else [_as_maps(row) for row in rows]
    if version == "2":
        rows = [_without_scores(row, schema.field("trajectories").type.value_type.names) for row in rows]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def _as_maps(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, **{name: [(item["name"], item["value"]) for item in row[name]] for name in BY_NAME}}


def _without_scores(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    trajectories = [{name: one[name] for name in names} for one in row["trajectories"]]
    return {**row, "trajectories": trajectories, "seals": row["seals"][:-NUM_NEW_LEAVES]}
