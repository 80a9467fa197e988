"""Files of rollouts as earlier versions of agentrl wrote them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.store.schema import READABLE, VERSION_KEY

NUM_NEW_LEAVES = 4
"""What version 3 added: the last leaves of the schema."""


def as_version_2(path: Path) -> None:
    """Rewrite a file of version 3 without what version 2 did not keep; the seals of the rest stay as they are."""
    table = pq.read_table(path, partitioning=None)
    metadata = {**table.schema.metadata, VERSION_KEY.encode(): b"2"}
    schema = READABLE["2"].with_metadata(metadata)
    rows = [
        {
            **row,
            "trajectories": [{name: one[name] for name in names_of(schema)} for one in row["trajectories"]],
            "seals": row["seals"][:-NUM_NEW_LEAVES],
        }
        for row in table.to_pylist()
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def names_of(schema: pa.Schema) -> list[str]:
    return schema.field("trajectories").type.value_type.names
