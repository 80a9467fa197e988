"""Cuts a mini-batch into micro-batches. Pure; the same for every backend."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from agentrl.samples import Sample

Prompt = tuple[int, ...]
"""The tokens of a sample before its first trained one."""


def split_prompt(sample: Sample) -> tuple[Prompt, Sequence[int]]:
    """A sample's prompt, and its own tokens after it; without the last trained token and what follows.

    Those predict nothing, so nobody need compute them. The sample must train something.
    """
    first = sample.loss_mask.index(1)
    last = len(sample.loss_mask) - 1 - sample.loss_mask[::-1].index(1)
    return tuple(sample.token_ids[:first]), sample.token_ids[first:last]


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
    prompts: Sequence[Prompt],
    num_own_tokens: Sequence[int],
    max_tokens: int | None,
    max_samples: int | None = None,
    enough_tokens: int | None = None,
) -> list[list[int]]:
    """The same where a micro-batch has no padding and computes a prompt once for all its samples of that prompt.

    Samples that share a prompt stay together where they fit; different prompts are put together up to `enough_tokens`
    only. Without `max_tokens`, every micro-batch but the last has exactly `max_samples`.

        prompts A, A, B, A of 3, 3, 2, 3 tokens, followed by 1, 2, 4, 5:
        pack_shared(..., max_tokens=10) == [[3, 1], [2, 0]]         3 + 5 + 2 and 2 + 4 + 3 + 1 tokens
    """
    families = _families(prompts, num_own_tokens)
    if max_tokens is None:
        order = list(chain.from_iterable(families))
        step = max_samples or max(1, len(order))
        return [order[start : start + step] for start in range(0, len(order), step)]
    pieces = []
    for members in families:
        num_prompt = len(prompts[members[0]])
        items = [(num_own_tokens[index], [index]) for index in members]
        pieces += _fill(items, max_tokens, max_samples, num_prompt)
    pieces.sort(key=lambda piece: (-piece[0], piece[1]))
    packs = _fill(pieces, min(max_tokens, enough_tokens or max_tokens), max_samples)
    return [indices for _, indices in sorted(packs, key=lambda piece: -piece[0])]


def _families(prompts: Sequence[Prompt], num_own_tokens: Sequence[int]) -> list[list[int]]:
    """The samples of each prompt, longest first."""
    families: defaultdict[Prompt, list[int]] = defaultdict(list)
    for index in sorted(range(len(prompts)), key=lambda index: (-num_own_tokens[index], index)):
        families[prompts[index]].append(index)
    return list(families.values())


Piece = tuple[int, list[int]]
"""Tokens, and the samples that have them."""


def _fill(items: Sequence[Piece], max_tokens: int, max_samples: int | None, num_shared: int = 0) -> list[Piece]:
    """Neighbouring items put together while they fit; each result has `num_shared` tokens besides."""
    filled: list[Piece] = []
    for tokens, indices in items:
        held, members = filled[-1] if filled else (0, [])
        fits = _within(held + tokens, max_tokens) and _within(len(members) + len(indices), max_samples)
        if members and fits:
            filled[-1] = (held + tokens, members + indices)
        else:
            filled.append((num_shared + tokens, indices))
    return filled


def _within(count: int, limit: int | None) -> bool:
    return limit is None or count <= limit
