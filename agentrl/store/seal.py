"""Seals: a checksum of every value of a row, so that a change made after writing shows where it was made.

A row has one seal a leaf of the schema (`uid`, `tool_calls.name`, `trajectories.segments.token_ids`; a map has the
leaves `key` and `value`): the CRC-32 (RFC 1952) of, outermost first, the lengths of the lists on the way to the leaf
(int32, -1 where one is null), then its values: numbers as little-endian bytes, a boolean as one byte; of texts first
the lengths in bytes (int32, -1 where one is null), then their UTF-8.

    tool_calls [{name: "f"}, {name: "go"}]  ->  the seal of tool_calls.name is that of the bytes 2 | 1 2 | "f" "go"

They guard against accidents, and against edits that leave them alone; whoever wants to deceive can compute them anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Integers = NDArray[np.integer]


def seals(columns: Sequence[pa.Array]) -> pa.ListArray:
    """For each row the seals of its leaves, in the order of `columns`; list<uint32>."""
    num_rows = len(columns[0])
    leaves = [leaf for column in columns for leaf in _leaves(column, np.arange(num_rows + 1), [0] * num_rows)]
    ends = np.arange(num_rows + 1, dtype=np.int32) * len(leaves)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(np.array(leaves, np.uint32).T.ravel()))


def _leaves(array: pa.Array, ends: Integers, above: Sequence[int]) -> Iterator[list[int]]:
    """The seals of each leaf of `array`, whose row i holds the values from `ends[i]` to `ends[i + 1]`.

    Args:
        above: for each row the checksum so far.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        for part in array.flatten():
            yield from _leaves(part, ends, above)
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        lengths = np.where(array.is_null().to_numpy(zero_copy_only=False), -1, np.diff(array.offsets)).astype("<i4")
        inner = np.asarray(array.offsets)[ends]
        for part in (array.keys, array.items) if pa.types.is_map(kind) else (array.values,):
            yield from _leaves(part, inner, _summed(lengths, ends, above))
    elif pa.types.is_string(kind):
        texts = [b"" if text is None else text for text in array.cast(pa.binary()).to_pylist()]
        lengths = np.where(array.is_null().to_numpy(zero_copy_only=False), -1, [*map(len, texts)]).astype("<i4")
        starts = np.fromiter(accumulate(map(len, texts), initial=0), np.int64)[ends]
        yield _summed(np.frombuffer(b"".join(texts), np.uint8), starts, _summed(lengths, ends, above))
    else:
        numbers = array.to_numpy(zero_copy_only=False)
        yield _summed(numbers.astype(numbers.dtype.newbyteorder("<"), copy=False), ends, above)


def _summed(values: Integers, ends: Integers, above: Sequence[int]) -> list[int]:
    """`above`, gone on with over the bytes of each row's values."""
    content = memoryview(values.tobytes())
    places = (ends * values.itemsize).tolist()
    return [crc32(content[start:stop], said) for said, (start, stop) in zip(above, pairwise(places), strict=True)]
