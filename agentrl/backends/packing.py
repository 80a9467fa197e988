"""Split a mini-batch into micro-batches. Pure functions for all backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from agentrl.types.sample import Sample

IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]  # Any: any shape


_MOST_EXPERTS = 4096
"""Upper bound on experts per layer; the largest models have about 500."""


def used_tokens(sample: Sample) -> IntArray:
    """Return a sample's tokens before its last trained token.

    The last trained token and later tokens predict no trained token, so the model does not compute them. The sample
    must have a trained token.
    """
    last = len(sample.loss_mask) - 1 - sample.loss_mask[::-1].index(1)
    return np.array(sample.token_ids[:last], dtype=np.int64)


def token_keys(sample: Sample) -> IntArray:
    """Return a key for each of the `used_tokens`, [T']. A common prefix of keys is computed once for several samples.

    A key is the token id, combined with the recorded experts if there are any, because the engine may have used
    different experts for the same token in two rollouts.
    """
    tokens = used_tokens(sample)
    if sample.routed_experts is None:
        return tokens
    experts = sample.routed_experts[: len(tokens)].numpy()
    words = _words(experts.shape[1])[np.arange(experts.shape[1])[:, None], experts]
    # a hash collision has probability 2^-64, and a step compares about 10^6 tokens
    tokens[: len(experts)] ^= words.sum(axis=(1, 2))  # a sum is independent of the order of a layer's experts
    return tokens


@cache
def _words(num_layers: int) -> IntArray:
    """Random hash of each expert of each layer. The seed is fixed, so that packing is the same in every run."""
    bounds = np.iinfo(np.int64)
    return np.random.Generator(np.random.PCG64(0)).integers(bounds.min, bounds.max, (num_layers, _MOST_EXPERTS))


def sorted_by_prefix(sequences: Sequence[IntArray]) -> list[int]:
    """Return the indices of the sequences in lexicographic order.

    Of all earlier sequences in this order, the direct predecessor of a sequence shares the longest prefix with it.
    """
    return sorted(range(len(sequences)), key=lambda index: (sequences[index].astype(">u8").tobytes(), index))


def num_common(one: IntArray, other: IntArray) -> int:
    """Return the length of the common prefix."""
    shorter = min(len(one), len(other))
    differing = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differing[0]) if len(differing) else shorter


def pack(
    lengths: Sequence[int], max_tokens: int | None, max_samples: int | None = None, *, padded: bool = True
) -> list[list[int]]:
    """Split samples into micro-batches (lists of indices), longest first, so that out-of-memory errors happen early.

    Every sample is in exactly one micro-batch. The size of a micro-batch is at most `max_tokens`. If `padded`, its size
    is the number of samples times the longest length, else the sum of the lengths. A sample that is longer than
    `max_tokens` gets a separate micro-batch. For both limits, None means no limit.

        pack([3, 5, 4, 1], max_tokens=10) == [[1, 2], [0, 3]]
    """
    packs: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        last = packs[-1] if packs else []
        # the first sample of a micro-batch is the longest, so it determines the padded width
        size = (
            (len(last) + 1) * lengths[last[0]] if padded and last else sum(lengths[other] for other in [*last, index])
        )
        if last and _within(size, max_tokens) and _within(len(last) + 1, max_samples):
            last.append(index)
        else:
            packs.append([index])
    return packs


def pack_shared(
    sequences: Sequence[IntArray],
    max_tokens: int | None,
    max_samples: int | None = None,
    enough_tokens: int | None = None,
    keys_per_token: int | None = 16,
) -> list[list[int]]:
    """Split sequences into micro-batches without padding, in which common prefixes are computed once (prefix tree).

    Samples with a common prefix stay together if they fit. If a sample attends to a shared prefix, the keys and values
    of prefix and sample are copied. The copies are padded to the longest sample that is copied. `keys_per_token`
    copied tokens count as one token of `max_tokens`; None: keys are not copied. Beyond `enough_tokens`, a micro-batch
    accepts only samples that share more tokens than they add. If `max_tokens` and `enough_tokens` are None, at most one
    micro-batch has fewer than `max_samples` samples.

        A = [1 1 1 5], B = [1 1 1 6 6], C = [2 2], D = [1 1 1 5 7 7 7]; sorted: A D B C
        pack_shared([A, B, C, D], max_tokens=9) == [[0, 3, 1], [2]]
        first micro-batch: 4 + 3 + 2 tokens, with copied keys for D and B; second: 2 tokens
    """
    packs: list[_Pack] = []
    before: IntArray = np.empty(0, dtype=np.int64)
    for index in sorted_by_prefix(sequences):
        own, last = sequences[index], packs[-1] if packs else _Pack()
        num_shared = num_common(before, own) if packs else 0
        new, grown = len(own) - num_shared, last.grown(index, len(own), num_shared)
        fits = _within(grown.size(keys_per_token), max_tokens) and _within(len(grown.members), max_samples)
        if packs and fits and (_within(grown.num_tokens, enough_tokens) or num_shared > new):
            packs[-1] = grown
        else:
            packs.append(_Pack().grown(index, len(own), 0))
        before = own
    return [pack.members for pack in sorted(packs, key=lambda pack: -pack.size(keys_per_token))]


@dataclass(frozen=True, slots=True)
class _Pack:
    """Samples of one micro-batch. `num_attending` samples attend to shared tokens, and have up to `longest` tokens."""

    members: list[int] = field(default_factory=list)
    num_tokens: int = 0
    num_attending: int = 0
    longest: int = 0

    def grown(self, index: int, length: int, num_shared: int) -> _Pack:
        attends = 0 < num_shared < length  # a sample that adds no token is already computed
        longest = max(self.longest, length) if attends else self.longest
        num_tokens = self.num_tokens + length - num_shared
        return _Pack([*self.members, index], num_tokens, self.num_attending + attends, longest)

    def size(self, keys_per_token: int | None) -> int:
        copies = self.num_attending * self.longest // keys_per_token if keys_per_token else 0
        return self.num_tokens + copies


def _within(count: int, limit: int | None) -> bool:
    return limit is None or count <= limit
