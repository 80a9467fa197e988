"""Cuts a mini-batch into micro-batches of similar length. Pure; the same for every backend."""

from __future__ import annotations

from collections.abc import Sequence


def pack(lengths: Sequence[int], max_tokens: int, max_rows: int | None = None) -> list[list[int]]:
    """Indices of the samples of each micro-batch, longest first, so that what runs out of memory does so at once.

    Every sample stands in exactly one micro-batch. Rows times the longest row, padding included, is at most
    `max_tokens`, except where a single sample is longer: it gets a micro-batch of its own.

        pack([3, 5, 4, 1], max_tokens=10) == [[1, 2], [0, 3]]
    """
    packs: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        last = packs[-1] if packs else []
        has_row_left = max_rows is None or len(last) < max_rows
        # the first of a micro-batch is its longest, so it sets the width
        if last and has_row_left and (len(last) + 1) * lengths[last[0]] <= max_tokens:
            last.append(index)
        else:
            packs.append([index])
    return packs
