"""Recompute seals. A seal is the CRC-32 of one leaf (column) in one row: of the list lengths followed by the values."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from agentrl.audit.checks import Checker
from agentrl.audit.reading.schema import LEAVES_OF
from agentrl.audit.reading.table import Items, Step


def sealed_leaves(step: Step) -> list[str]:
    """Paths of the sealed leaves, in the order of their seals."""
    return [path for path in LEAVES_OF[step.metadata["schema_version"]] if path != "seals"]


def seals_of(step: Step) -> NDArray[np.uint32]:
    """[rows, leaves] seals, in the order of the schema."""
    return np.stack([_leaf_seals(step, path) for path in sealed_leaves(step)], axis=1)


def check_seals(check: Checker) -> None:
    """Check every leaf of every row against its saved seal."""
    step, leaves = check.step, sealed_leaves(check.step)
    if not check.require_lengths("seals", "seals", np.full(len(step), len(leaves))).all():
        return
    check.ledger.count("seals", len(step) * (len(leaves) - 1))
    found, saved = seals_of(step), step["seals"].reshape(len(step), len(leaves))
    for row, leaf in np.argwhere(found != saved).tolist():
        expected = f"a value with the seal {saved[row, leaf]}"
        check.problem("seals", row, leaves[leaf], expected, f"a value with the seal {found[row, leaf]}")


def _leaf_seals(step: Step, path: str) -> NDArray[np.uint32]:
    """[rows]: one checksum per row, over the lengths of the lists (outermost first), then the values of the leaf.

    In a leaf of texts, the lengths of the texts come before the texts.
    """
    sums = [0] * len(step)
    holder = step.holder[path]
    for items in _lists_down_to(holder):
        lengths = np.where(items.null, -1, items.lengths)
        assert items.above is not None
        sums = _continued(sums, lengths.astype("<i4"), _row_ends(items.above, len(step)))
    array, row_ends = step.arrays[path], _row_ends(holder, len(step))
    if not pa.types.is_string(array.type):
        values = array.to_numpy(zero_copy_only=False)
        return np.array(_continued(sums, values.astype(values.dtype.newbyteorder("<")), row_ends), np.uint32)
    texts = array.cast(pa.large_binary()).to_pylist()
    lengths = np.array([-1 if text is None else len(text) for text in texts], "<i4")
    sums = _continued(sums, lengths, row_ends)
    ends = np.concatenate([[0], np.cumsum(np.maximum(lengths, 0), dtype=np.int64)])[row_ends]
    content = np.frombuffer(b"".join(text or b"" for text in texts), np.uint8)
    return np.array(_continued(sums, content, ends), np.uint32)


def _lists_down_to(items: Items) -> list[Items]:
    return [] if items.above is None else [*_lists_down_to(items.above), items]


def _row_ends(items: Items, num_rows: int) -> NDArray[np.int64]:
    """[rows + 1]: offset of the first item of each row, and the end of the last row."""
    if items.above is None:
        return np.arange(num_rows + 1)
    ends: NDArray[np.int64] = items.ends[_row_ends(items.above, num_rows)]
    return ends


def _continued(sums: list[int], values: NDArray[np.generic], row_ends: NDArray[np.int64]) -> list[int]:
    content, places = values.tobytes(), (row_ends * values.itemsize).tolist()
    return [crc32(content[places[row] : places[row + 1]], start) for row, start in enumerate(sums)]
