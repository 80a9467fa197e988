"""Seals: checksums of the columns of each row. They locate changes made after writing.

A row has one seal per leaf of the schema (`uid`, `tool_calls.name`, `trajectories.segments.token_ids`). A seal is the
CRC-32 (RFC 1952) of these bytes, in this order:

1. The lengths of the lists that contain the leaf, outermost first (int32, -1 for a null list).
2. For text, the lengths in bytes (int32, -1 for null).
3. The values: numbers as little-endian bytes, a boolean as one byte, text as UTF-8.

    tool_calls [{name: "f"}, {name: "go"}]  ->  the seal of tool_calls.name covers the bytes 2 | 1 2 | "f" "go"

Seals detect accidental changes, and edits that do not update the seals. They do not prevent forgery: anyone can
recompute seals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Integers = NDArray[np.integer]


def seals(columns: Sequence[pa.Array]) -> pa.ListArray:
    """Return an array of list<uint32>: for each row, the seals of its leaves in the order of `columns`."""
    num_rows = len(columns[0])
    ends, nothing = np.arange(num_rows + 1), np.zeros(num_rows, np.uint32)
    leaves = [leaf for column in columns for leaf in _leaves(column, ends, nothing)]
    row_ends = np.arange(num_rows + 1, dtype=np.int32) * len(leaves)
    return pa.ListArray.from_arrays(pa.array(row_ends), pa.array(np.array(leaves, np.uint32).T.ravel()))


def _leaves(array: pa.Array, ends: Integers, start_sums: Integers) -> Iterator[Integers]:
    """Yield for each leaf of `array` the seals of all rows.

    Args:
        ends: row i holds the values of `array` from index `ends[i]` to `ends[i + 1]`.
        start_sums: for each row, the checksum over the lengths of the lists that contain `array`.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        for part in array.flatten():
            yield from _leaves(part, ends, start_sums)
    elif pa.types.is_list(kind):
        offsets = np.asarray(array.offsets)
        sums = _updated(_lengths(array, offsets), ends, start_sums)
        yield from _leaves(array.values, offsets[ends], sums)
    elif pa.types.is_string(kind):
        filled = array.fill_null("") if array.null_count else array
        _, offset_bytes, content = filled.buffers()
        offsets = np.frombuffer(offset_bytes or bytes(4), "<i4")[filled.offset : filled.offset + len(filled) + 1]
        sums = _updated(_lengths(array, offsets), ends, start_sums)
        yield _updated(np.frombuffer(content or b"", np.uint8), offsets[ends], sums)
    else:
        numbers = array.to_numpy(zero_copy_only=False)
        yield _updated(numbers.astype(numbers.dtype.newbyteorder("<"), copy=False), ends, start_sums)


def _lengths(array: pa.Array, offsets: Integers) -> Integers:
    """Return the lengths of lists or texts; -1 for null."""
    lengths = (offsets[1:] - offsets[:-1]).astype("<i4", copy=False)
    return np.where(np.asarray(array.is_null()), np.int32(-1), lengths) if array.null_count else lengths


def _updated(values: Integers, ends: Integers, start_sums: Integers) -> Integers:
    """Return the checksums in `start_sums`, each updated with the bytes of its row's values."""
    if ends[0] == ends[-1]:
        return start_sums
    places = ends * values.itemsize
    num_bytes = int(places[1] - places[0])
    content = values[ends[0] : ends[-1]].tobytes()
    if (places[1:] - places[:-1] == num_bytes).all():
        if content[num_bytes:] == content[:-num_bytes] and (start_sums == start_sums[0]).all():  # all rows are equal
            return np.full(len(start_sums), crc32(content[:num_bytes], int(start_sums[0])), np.uint32)
        rows = np.frombuffer(content, f"V{num_bytes}").tolist()  # bytes of each row, faster than slices
    else:
        stops = (places - places[0]).tolist()
        rows = [content[start:stop] for start, stop in pairwise(stops)]
    return np.fromiter(map(crc32, rows, start_sums.tolist()), np.uint32, len(start_sums))
