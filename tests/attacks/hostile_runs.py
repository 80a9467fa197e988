"""Copies of a small real run with an altered configuration or altered column values."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CONFIG = b"agentrl.provenance.config"


def copied(run: Path, folder: Path, alter: Callable[[pa.Table], pa.Table]) -> Path:
    """A copy of the run with each trajectory file altered."""
    shutil.copytree(run, folder, symlinks=True)
    for file in sorted((folder / "trajectories").rglob("*.parquet")):
        pq.write_table(alter(pq.read_table(file)), file)
    return folder


def with_keys(values: dict[str, object]) -> Callable[[pa.Table], pa.Table]:
    """Change the saved configuration: dotted key -> value."""

    def alter(table: pa.Table) -> pa.Table:
        metadata = dict(table.schema.metadata)
        config = json.loads(metadata[CONFIG])
        for key, value in values.items():
            put(config, key, value)
        return table.replace_schema_metadata({**metadata, CONFIG: json.dumps(config).encode()})

    return alter


def put(config: dict[str, Any], key: str, value: object) -> None:
    """Set a dotted key. Any: a configuration as plain values."""
    *sections, name = key.split(".")
    for section in sections:
        config[section] = config.get(section) or {}
        config = config[section]
    config[name] = value
