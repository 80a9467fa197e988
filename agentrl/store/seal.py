"""Seals: a short hash of every value of a row, so that a change made after writing shows where it was made.

A row has one seal a leaf of the schema (`uid`, `tool_calls.name`, `trajectories.segments.token_ids`; a map has the
leaves `key` and `value`): BLAKE2b with 8 bytes, read as a little-endian number. Hashed are, outermost first, the
lengths of the lists on the way to the leaf (int32, -1 where one is null), then its values: numbers as little-endian
bytes, a boolean as one byte; of texts first the lengths in bytes (int32, -1 where one is null), then their UTF-8.

    tool_calls [{name: "f"}, {name: "go"}]  ->  the seal of tool_calls.name hashes 2 | 1 2 | "f" "go"

It guards against accident and against edits that leave the seals alone; whoever wants to deceive can compute them anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Integers = NDArray[np.integer]


def seals(columns: Sequence[pa.Array]) -> pa.ListArray:
    """For each row the seals of its leaves, in the order of `columns`; list<uint64>."""
    num_rows = len(columns[0])
    leaves = [leaf for column in columns for leaf in _leaves(column, np.arange(num_rows + 1), [b""] * num_rows)]
    hashes = np.array(leaves, np.uint64).T.ravel()
    ends = np.arange(num_rows + 1, dtype=np.int32) * len(leaves)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(hashes))


def _leaves(array: pa.Array, ends: Integers, above: Sequence[bytes]) -> Iterator[list[int]]:
    """The seals of each leaf of `array`, whose row i holds the values from `ends[i]` to `ends[i + 1]`.

    Args:
        above: for each row what its hashes begin with.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        for part in array.flatten():
            yield from _leaves(part, ends, above)
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        lengths = np.where(array.is_null().to_numpy(zero_copy_only=False), -1, np.diff(array.offsets)).astype("<i4")
        heads = [head + said for head, said in zip(above, _cut(lengths, ends), strict=True)]
        inner = np.asarray(array.offsets)[ends]
        for part in (array.keys, array.items) if pa.types.is_map(kind) else (array.values,):
            yield from _leaves(part, inner, heads)
    else:
        cut = _cut_texts(array, ends) if pa.types.is_string(kind) else _cut(_numbers(array), ends)
        yield [_hash(head + said) for head, said in zip(above, cut, strict=True)]


def _cut(values: Integers, ends: Integers) -> Iterator[bytes]:
    return (values[start:stop].tobytes() for start, stop in pairwise(ends.tolist()))


def _numbers(array: pa.Array) -> Integers:
    values: Integers = array.to_numpy(zero_copy_only=False)
    return values.astype(values.dtype.newbyteorder("<"), copy=False)


def _cut_texts(array: pa.Array, ends: Integers) -> Iterator[bytes]:
    texts = array.cast(pa.binary()).to_pylist()
    lengths = np.array([-1 if text is None else len(text) for text in texts], "<i4")
    joined = b"".join(text or b"" for text in texts)
    starts = np.array([0, *accumulate(len(text or b"") for text in texts)])[ends]
    return (
        said + joined[start:stop] for said, (start, stop) in zip(_cut(lengths, ends), pairwise(starts), strict=True)
    )


def _hash(said: bytes) -> int:
    return int.from_bytes(blake2b(said, digest_size=8).digest(), "little")
