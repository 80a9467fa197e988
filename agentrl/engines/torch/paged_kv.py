"""Keys and values in blocks of 16 tokens: a growing store, and reference counts of its blocks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

IntArray = np.ndarray[Any, np.dtype[np.int64]]

BLOCK_SIZE = 16
"""Tokens per block. Rows read full blocks, so a row's number of keys is a multiple of this number."""


def num_blocks_for(num_tokens: int) -> int:
    """Number of blocks for `num_tokens`."""
    return -(-num_tokens // BLOCK_SIZE)


class KVStore:
    """Store with two tensors [heads, blocks, 16, size] per layer, for keys and values; created at the first write.

    Heads are the first axis, so the keys gathered for a row are contiguous per head, which is fastest for attention.
    Block 0 is never allocated: padding reads and writes it.
    """

    block_size = BLOCK_SIZE

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._scratch: dict[str, Tensor] = {}
        self.num_blocks = 1

    def write(self, layer: int, where: Tensor, key_KMD: Tensor, value_KMD: Tensor) -> None:
        """Write the keys and values of M tokens to the slots `where` = block * 16 + offset."""
        if layer not in self._layers:
            self._layers[layer] = (self._empty(key_KMD), self._empty(value_KMD))
        for blocks, new in zip(self._layers[layer], (key_KMD, value_KMD), strict=True):
            blocks.flatten(1, 2).index_copy_(1, where, new)

    def read(self, layer: int, blocks_RN: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [R, K, W, D] of the given blocks, W = 16 N; the next read overwrites the result."""
        keys, values = self._layers[layer]
        return self._gather("keys", keys, blocks_RN), self._gather("values", values, blocks_RN)

    def copy_block(self, source: int, target: int) -> None:
        """Copy block `source` to block `target` in every layer."""
        for blocks in chain.from_iterable(self._layers.values()):
            blocks[:, target] = blocks[:, source]

    def clear_blocks(self, numbers: Sequence[int]) -> None:
        """Zero blocks that may hold NaN: a masked key has weight 0, but 0 x NaN is NaN."""
        for blocks in chain.from_iterable(self._layers.values()):
            blocks[:, list(numbers)] = 0

    def grow(self, num_blocks: int) -> None:
        """Grow the store to `num_blocks` blocks and keep its content."""
        self.num_blocks = num_blocks
        for layer, (keys, values) in self._layers.items():
            self._layers[layer] = (self._grown(keys), self._grown(values))

    def _gather(self, name: str, blocks: Tensor, blocks_RN: Tensor) -> Tensor:
        """[heads, blocks, 16, size] -> [R, heads, 16 N, size]."""
        heads, _, _, size = blocks.shape
        shape = (heads, blocks_RN.numel(), BLOCK_SIZE * size)
        # reuse a buffer: on the CPU, each new allocation of megabytes would cause page faults
        scratch = self._scratch.get(name)
        if scratch is None or scratch.numel() < math.prod(shape):
            scratch = self._scratch[name] = blocks.new_empty(math.prod(shape))
        found = scratch[: math.prod(shape)].view(shape)
        torch.index_select(blocks.flatten(2), 1, blocks_RN.flatten(), out=found)
        return found.view(heads, blocks_RN.shape[0], -1, size).transpose(0, 1)

    def _empty(self, like_KMD: Tensor) -> Tensor:
        heads, _, size = like_KMD.shape
        return like_KMD.new_zeros(heads, self.num_blocks, BLOCK_SIZE, size)

    def _grown(self, blocks: Tensor) -> Tensor:
        grown = blocks.new_zeros(blocks.shape[0], self.num_blocks, *blocks.shape[2:])
        grown[:, : blocks.shape[1]] = blocks
        return grown


class BlockAllocator:
    """Reference counts of blocks: allocation, sharing, and growth of the store up to `capacity` blocks."""

    def __init__(self, store: KVStore, capacity: int) -> None:
        self.store = store
        self.capacity = capacity
        self._free: list[int] = []
        self._holders: Counter[int] = Counter()

    @property
    def num_used(self) -> int:
        """Number of blocks in use."""
        return len(self._holders)

    def allocate(self) -> int | None:
        """Allocate an unshared block; None if the capacity is used up."""
        if not self._free and not self._grow():
            return None
        block = self._free.pop()
        self._holders[block] = 1
        return block

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of `blocks`."""
        self._holders.update(blocks)

    def is_shared(self, block: int) -> bool:
        """Whether a block has several references and therefore must not be written."""
        return self._holders[block] > 1

    def is_held(self, block: int) -> bool:
        """Whether a block is in use."""
        return block in self._holders

    def give_back(self, blocks: Iterable[int]) -> list[int]:
        """Remove a reference from each of `blocks`; return the blocks that are now free."""
        freed = []
        for block in blocks:
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]
                freed.append(block)
        self._free.extend(reversed(freed))
        return freed

    def _grow(self) -> bool:
        have = self.store.num_blocks - 1  # without the padding block
        more = min(max(have, 64), self.capacity - have)
        if more <= 0:
            return False
        self.store.grow(1 + have + more)
        self._free.extend(range(have + more, have, -1))
        return True
