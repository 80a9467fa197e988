"""Cuts a mini-batch into micro-batches. Pure; the same for every backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from agentrl.samples import Sample

IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]  # Any: of any shape


_MOST_EXPERTS = 4096
"""Of a layer; the largest models have some 500."""


def used_tokens(sample: Sample) -> IntArray:
    """A sample's tokens before its last trained one: that one and what follows predict nothing, and are not computed.

    The sample must train something.
    """
    last = len(sample.loss_mask) - 1 - sample.loss_mask[::-1].index(1)
    return np.array(sample.token_ids[:last], dtype=np.int64)


def computed_alike(sample: Sample) -> IntArray:
    """[T'] a number for each of the sample's used tokens: two samples whose numbers begin alike compute the same there.

    The tokens themselves, but where experts were recorded: siblings may have been sent to others at the same token.
    """
    tokens = used_tokens(sample)
    if sample.routed_experts is None:
        return tokens
    experts = sample.routed_experts[: len(tokens)].numpy()
    words = _words(experts.shape[1])[np.arange(experts.shape[1])[:, None], experts]
    # others have the same sum by a chance of 2^-64; some 10^6 tokens a step are compared
    tokens[: len(experts)] ^= words.sum(axis=(1, 2))  # whatever order the experts of a layer are said in
    return tokens


@cache
def _words(num_layers: int) -> IntArray:
    """A random number for each expert of each layer, the same every time: the cut must not differ from run to run."""
    bounds = np.iinfo(np.int64)
    return np.random.Generator(np.random.PCG64(0)).integers(bounds.min, bounds.max, (num_layers, _MOST_EXPERTS))


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
    keys_a_token: int = 16,
) -> list[list[int]]:
    """The same where a micro-batch has no padding and computes what samples begin with alike once: a prefix tree.

    Samples of a common beginning stay together where they fit. Each of them has a copy of all keys and values it looks
    at, padded to the longest: `keys_a_token` of these count as one token of `max_tokens`. Beyond `enough_tokens` a
    micro-batch grows only by samples that share more with it than they add. Without `max_tokens`, all but one have
    exactly `max_samples`.

        A = [1 1 1 5], B = [1 1 1 6 6], C = [2 2], D = [1 1 1 5 7 7 7]; in alphabetical order A D B C
        pack_shared([A, B, C, D], max_tokens=9) == [[0, 3, 1], [2]]       4 + 3 + 2 tokens, copies for D and B; and 2
    """
    packs: list[_Pack] = []
    before: IntArray = np.empty(0, dtype=np.int64)
    for index in beginnings_first(sequences):
        own, last = sequences[index], packs[-1] if packs else _Pack()
        num_shared = num_common(before, own) if packs else 0
        new, grown = len(own) - num_shared, last.grown(index, len(own), num_shared)
        fits = _within(grown.size(keys_a_token), max_tokens) and _within(len(grown.members), max_samples)
        if packs and fits and (_within(grown.num_tokens, enough_tokens) or num_shared > new):
            packs[-1] = grown
        else:
            packs.append(_Pack().grown(index, len(own), 0))
        before = own
    return [pack.members for pack in sorted(packs, key=lambda pack: -pack.size(keys_a_token))]


@dataclass(frozen=True, slots=True)
class _Pack:
    """Samples of one micro-batch; `num_looking` of them look at tokens of others, the longest at `longest` in all."""

    members: list[int] = field(default_factory=list)
    num_tokens: int = 0
    num_looking: int = 0
    longest: int = 0

    def grown(self, index: int, length: int, num_shared: int) -> _Pack:
        looks = 0 < num_shared < length  # one that adds nothing is computed already
        longest = max(self.longest, length) if looks else self.longest
        num_tokens = self.num_tokens + length - num_shared
        return _Pack([*self.members, index], num_tokens, self.num_looking + looks, longest)

    def size(self, keys_a_token: int) -> int:
        return self.num_tokens + self.num_looking * self.longest // keys_a_token


def _within(count: int, limit: int | None) -> bool:
    return limit is None or count <= limit
