"""Read, check and write one Parquet file of trajectories, row group by row group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agentrl.errors import DataError
from agentrl.store.checking import check_row
from agentrl.store.columns import python_values
from agentrl.store.decode import stored_rollouts
from agentrl.store.filters import FILTERS, Query
from agentrl.store.schema import (
    BY_NAME,
    EXCLUDED,
    FACTS,
    OPERATIONS,
    PROVENANCE_KEY,
    READABLE,
    ROUTED_EXPERTS_KEY,
    SCHEMA,
    SCORES,
    SEALS,
    TRAJECTORY,
    VERSION,
    VERSION_KEY,
    WEIGHT,
)
from agentrl.store.stored import StoredRollout
from agentrl.store.text import original, writable


def write_batches(
    file: BinaryIO,
    batches: Iterable[pa.RecordBatch],
    provenance: Mapping[str, str],
    experts_hash: str | None = None,
) -> None:
    """Write each batch as a row group.

    Args:
        experts_hash: return value of `routed_experts.write_experts` for these rollouts.
    """
    entries = {f"{PROVENANCE_KEY}{name}": value for name, value in provenance.items()}
    if experts_hash:
        entries[ROUTED_EXPERTS_KEY] = experts_hash
    metadata = {writable(name): writable(value) for name, value in {VERSION_KEY: VERSION, **entries}.items()}
    with pq.ParquetWriter(
        file,
        SCHEMA.with_metadata(metadata),
        compression="zstd",
        # dictionary encoding is slower; and token ids need more space with it, because zstd compresses plain ids better
        use_dictionary=False,
        write_statistics=list(FILTERS),
        write_page_checksum=True,
    ) as writer:
        for batch in batches:
            writer.write_batch(batch)


def open_file(path: Path) -> pq.ParquetFile:
    """Open a file of trajectories; the caller closes it.

    Raises:
        DataError: the file is damaged, not a trajectory file, of an unknown version, or lacks a column.
    """
    with _reading(path):
        file = pq.ParquetFile(path, page_checksum_verification=True)
    try:
        _check(path, file.schema_arrow)
    except DataError:
        file.close()
        raise
    return file


def read_without_maps(path: Path) -> pa.Table:
    """Read all columns, converted to the current schema: maps become lists of {name, value}, missing fields are added.

    Raises:
        DataError: the file cannot be read.
    """
    with open_file(path) as file, _reading(path):
        table = file.read().replace_schema_metadata(None)
        for name in BY_NAME:
            rows = python_values(table[name].combine_chunks())
            entries = [[{"name": key, "value": value} for key, value in row] for row in rows]
            table = _with_column(table, name, pa.array(entries, SCHEMA.field(name).type))
        table = _with_column(table, "trajectories", _completed(table["trajectories"].combine_chunks()))
    for name, empty in ((EXCLUDED, None), (OPERATIONS, []), (FACTS, "{}")):
        if name not in table.column_names:
            place, field = table.schema.get_field_index(SEALS), SCHEMA.field(name)
            table = table.add_column(place, field, pa.array([empty] * len(table), field.type))
    return table


def _with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), SCHEMA.field(name), values)


def _completed(trajectories: pa.ListArray) -> pa.ListArray:
    """Add the fields that older schema versions lack: null scores, a `kl_coef` of 0 and a weight of 1."""
    structs = trajectories.values
    known = {field.name for field in structs.type}
    missing = {**dict.fromkeys(SCORES), "kl_coef": 0.0, WEIGHT: 1.0}
    fields = [
        structs.field(field.name) if field.name in known else pa.array([missing[field.name]] * len(structs), field.type)
        for field in TRAJECTORY
    ]
    return pa.ListArray.from_arrays(
        trajectories.offsets,
        pa.StructArray.from_arrays(fields, fields=list(TRAJECTORY)),
        SCHEMA.field("trajectories").type,
    )


def read_provenance(file: pq.ParquetFile) -> dict[str, str]:
    """Return the provenance stored in the file."""
    entries = {original(key.decode()): original(value.decode()) for key, value in file.schema_arrow.metadata.items()}
    return {key.removeprefix(PROVENANCE_KEY): value for key, value in entries.items() if key.startswith(PROVENANCE_KEY)}


def read_experts_hash(path: Path) -> str | None:
    """Return the hash of the experts file's header, which is saved in `path`; None if there is no experts file.

    Raises:
        DataError: the file cannot be read.
    """
    with open_file(path) as file:
        saved: bytes | None = file.schema_arrow.metadata.get(ROUTED_EXPERTS_KEY.encode())
    return saved.decode() if saved else None


def steps_of(path: Path) -> list[int]:
    """Return the steps of the rollouts in a file, ascending.

    Raises:
        DataError: the file cannot be read, or holds no rollouts.
    """
    with open_file(path) as file, _reading(path):
        steps = sorted(pc.unique(file.read(["step"])["step"]).to_pylist())
    if not steps:
        raise DataError(f"{path}: no rollouts in the file")
    return steps


def matching_rollouts(path: Path, query: Query, columns: list[str] | None) -> Iterator[StoredRollout]:
    """Yield the rollouts that match `query`, in the order in which they were written. Row groups are decoded lazily.

    Raises:
        DataError: the file cannot be read.
    """
    with open_file(path) as file:
        for number in range(file.num_row_groups):
            with _reading(path):
                rollouts = list(stored_rollouts(_matching_rows(file, number, query, columns)))
                for stored in rollouts:
                    check_row(stored)
            yield from rollouts


def _matching_rows(file: pq.ParquetFile, number: int, query: Query, columns: list[str] | None) -> pa.Table:
    """Return the matching rows of a row group. Columns that are not in the query are read only if a row matches."""
    if not query.may_match(file.metadata.row_group(number)):
        return SCHEMA.empty_table()
    if not query.columns:
        return _row_group(file, number, columns)
    rows = query.rows(_row_group(file, number, query.columns))
    return _row_group(file, number, columns).take(rows) if len(rows) else SCHEMA.empty_table()


def _row_group(file: pq.ParquetFile, number: int, columns: list[str] | None) -> pa.Table:
    """Read a row group without threads, because its columns are so short that threads would be slower."""
    return file.read_row_group(number, columns, use_threads=False)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        line = " ".join(str(error).split())
        raise DataError(f"{path}: not a readable file of trajectories: {line or type(error).__name__}") from error


_UNREADABLE = (pa.ArrowException, OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""Errors raised for values that do not match the schema, such as unexpected nulls."""


def _check(path: Path, schema: pa.Schema) -> None:
    version = (schema.metadata or {}).get(VERSION_KEY.encode())
    if version is None:
        raise DataError(f"{path}: not a file of trajectories: its metadata has no '{VERSION_KEY}'")
    if (readable := READABLE.get(version.decode())) is None:
        known = ", ".join(READABLE)
        raise DataError(f"{path}: schema version {version.decode()} is not supported; supported versions: {known}")
    for field in readable:
        index = schema.get_field_index(field.name)
        if index < 0:
            raise DataError(f"{path}: no column '{field.name}'")
        if schema.field(index).type != field.type:
            raise DataError(f"{path}: column '{field.name}' is {schema.field(index).type}, expected {field.type}")
