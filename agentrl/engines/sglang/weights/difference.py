"""Differences between two byte tensors, and checksums.

A word is a unit of 1, 2, 4 or 8 bytes. A difference lists changed words: first the gaps between their positions, then
the new words. The bits of words are compared, so -0.0 differs from 0.0, and two NaN with different bits differ.

This module also runs in SGLang servers, so it imports only torch and the standard library.
"""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

LARGEST_GAP = 2**16 - 1
GAP_BYTES = 2
PIECE_BYTES = 2**24
PIECE_WORDS = 2**20
NUM_THREADS = 8
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def compare(old: Tensor, new: Tensor, word: int) -> tuple[int, Tensor]:
    """Return the number of changed words, and the difference.

    Args:
        old, new: [bytes] uint8; the number of bytes is a multiple of `word`.
        word: bytes of a word: 1, 2, 4 or 8.

    Returns:
        The difference is [listed words * (GAP_BYTES + word)] uint8. It lists some unchanged words too: see `_compare`.
    """
    pieces = zip(*(torch.split(data.view(_WORDS[word]), PIECE_WORDS) for data in (old, new)), strict=True)
    counts, gaps, words = zip(*(_compare(*piece) for piece in pieces), strict=True)
    return sum(counts), torch.cat([*gaps, *words])


def _compare(old: Tensor, new: Tensor) -> tuple[int, Tensor, Tensor]:
    """Return the number of changed words of a piece, the gaps before the listed words, and these words.

    The first, the last and every `LARGEST_GAP`-th word are listed, changed or not. So every gap fits into two bytes,
    and a piece does not depend on the pieces before it.
    """
    listed = old != new
    num_changed = int(listed.count_nonzero())
    listed[::LARGEST_GAP] = True
    listed[-1:] = True
    positions = listed.nonzero()[:, 0]
    gaps = positions.diff(prepend=torch.tensor([-1])).to(torch.uint16)
    return num_changed, gaps.view(torch.uint8), new[positions].view(torch.uint8)


def apply(data: Tensor, difference: Tensor, word: int) -> None:
    """Replace the listed words of `data`, [bytes] uint8, in place.

    Args:
        difference: from `compare`, for the same number of bytes.
    """
    count = len(difference) // (GAP_BYTES + word)
    gaps, words = difference[: count * GAP_BYTES], difference[count * GAP_BYTES :]
    # `clone`, because a view with another dtype must begin at a multiple of its item size
    data.view(_WORDS[word])[positions_of(gaps.clone())] = words.clone().view(_WORDS[word])


def positions_of(gaps: Tensor) -> Tensor:
    """Convert gaps, [count * GAP_BYTES] uint8, to the positions of the listed words, [count] int64."""
    return gaps.view(torch.uint16).to(torch.int64).cumsum(0) - 1


def checksum(data: Tensor) -> int:
    """Return the CRC-32 of the CRC-32 values of all pieces of `data`, [bytes] uint8. Several threads compute it."""
    pieces = torch.split(data, PIECE_BYTES)
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        sums = pool.map(lambda piece: zlib.crc32(piece.numpy()).to_bytes(4, "big"), pieces)
    return zlib.crc32(b"".join(sums))
