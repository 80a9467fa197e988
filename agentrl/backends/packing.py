"""Cuts a mini-batch into micro-batches. Pure; the same for every backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from agentrl.samples import Sample

IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]  # Any: of any shape


def used_tokens(sample: Sample) -> IntArray:
    """A sample's tokens before its last trained one: that one and what follows predict nothing, and are not computed.

    The sample must train something.
    """
    last = len(sample.loss_mask) - 1 - sample.loss_mask[::-1].index(1)
    return np.array(sample.token_ids[:last], dtype=np.int64)


def beginnings_first(sequences: Sequence[IntArray]) -> list[int]:
    """Their indices in alphabetical order: each then has its longest common beginning with the one before it."""
    return sorted(range(len(sequences)), key=lambda index: (sequences[index].astype(">u8").tobytes(), index))


def num_common(one: IntArray, other: IntArray) -> int:
    """How many tokens the two begin with alike."""
    shorter = min(len(one), len(other))
    differing = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differing[0]) if len(differing) else shorter


def pack(lengths: Sequence[int], max_tokens: int | None, max_samples: int | None = None) -> list[list[int]]:
    """Indices of the samples of each micro-batch, longest first, so that what runs out of memory does so at once.

    Every sample stands in exactly one micro-batch. Rows times the longest row, padding included, is at most
    `max_tokens`, except where a single sample is longer: it gets a micro-batch of its own. None sets no bound.

        pack([3, 5, 4, 1], max_tokens=10) == [[1, 2], [0, 3]]
    """
    packs: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        last = packs[-1] if packs else []
        # the first of a micro-batch is its longest, so it sets the width
        if last and _within((len(last) + 1) * lengths[last[0]], max_tokens) and _within(len(last) + 1, max_samples):
            last.append(index)
        else:
            packs.append([index])
    return packs


def pack_shared(
    sequences: Sequence[IntArray],
    max_tokens: int | None,
    max_samples: int | None = None,
    enough_tokens: int | None = None,
) -> list[list[int]]:
    """The same where a micro-batch has no padding and computes what samples begin with alike once: a prefix tree.

    Samples of a common beginning stay together where they fit. Beyond `enough_tokens` a micro-batch grows only by
    samples that share more with it than they add. Without `max_tokens`, all but one have exactly `max_samples`.

        A = [1 1 1 5], B = [1 1 1 6 6], C = [2 2], D = [1 1 1 5 7 7 7]; in alphabetical order A D B C
        pack_shared([A, B, C, D], max_tokens=9) == [[0, 3, 1], [2]]                       4 + 3 + 2 tokens, and 2
    """
    packs: list[tuple[int, list[int]]] = []
    before: IntArray = np.empty(0, dtype=np.int64)
    for index in beginnings_first(sequences):
        own, (held, members) = sequences[index], packs[-1] if packs else (0, [])
        num_shared = num_common(before, own) if members else 0
        new = len(own) - num_shared
        fits = _within(held + new, max_tokens) and _within(len(members) + 1, max_samples)
        if members and fits and (_within(held + new, enough_tokens) or num_shared > new):
            packs[-1] = (held + new, [*members, index])
        else:
            packs.append((len(own), [index]))
        before = own
    return [members for _, members in sorted(packs, key=lambda piece: -piece[0])]


def _within(count: int, limit: int | None) -> bool:
    return limit is None or count <= limit
