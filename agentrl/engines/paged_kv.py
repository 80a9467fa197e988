"""Keys and values in blocks of 16 tokens: a store that grows with use, and the books of who holds which block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

IntArray = np.ndarray[Any, np.dtype[np.int64]]

BLOCK_SIZE = 16
"""Tokens a block; rows are read in whole blocks, so key widths are multiples of it."""


def num_blocks_for(num_tokens: int) -> int:
    """Blocks that hold `num_tokens`."""
    return -(-num_tokens // BLOCK_SIZE)


class KVStore:
    """Per layer one tensor [blocks, 16, F] with all keys and values of a token side by side; made at the first write.

    Block 0 belongs to nobody: padding reads and writes it.
    """

    block_size = BLOCK_SIZE

    def __init__(self) -> None:
        self._layers: dict[int, Tensor] = {}
        self._shapes: dict[int, tuple[int, int, int]] = {}  # key-value heads, key size, value size
        self.num_blocks = 1

    def write(self, layer: int, where_M: Tensor, key_MKD: Tensor, value_MKD: Tensor) -> None:
        """Put the keys and values of M tokens at `where_M` = block * 16 + offset."""
        if layer not in self._layers:
            self._create(layer, key_MKD, value_MKD)
        features_MF = torch.cat([key_MKD.flatten(1), value_MKD.flatten(1)], dim=1)
        self._layers[layer].flatten(0, 1).index_copy_(0, where_M, features_MF)

    def read(self, layer: int, blocks_RN: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [R, K, W, D] of the given blocks, W = 16 N."""
        heads, key_size, value_size = self._shapes[layer]
        rows, columns = blocks_RN.shape
        found = self._layers[layer].flatten(1).index_select(0, blocks_RN.flatten()).view(rows, columns * BLOCK_SIZE, -1)
        keys, values = found[..., : heads * key_size], found[..., heads * key_size :]
        return (
            keys.view(rows, -1, heads, key_size).transpose(1, 2),
            values.view(rows, -1, heads, value_size).transpose(1, 2),
        )

    def copy_block(self, source: int, target: int) -> None:
        """Make `target` hold what `source` holds, in every layer."""
        for blocks in self._layers.values():
            blocks[target] = blocks[source]

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Zero blocks that may hold NaN: masked keys have weight 0, and 0 x NaN would spread it."""
        for layer in self._layers.values():
            layer[list(blocks)] = 0

    def grow(self, num_blocks: int) -> None:
        """Make room for `num_blocks` blocks, keeping what there is."""
        self.num_blocks = num_blocks
        for layer, blocks in self._layers.items():
            grown = blocks.new_zeros(num_blocks, *blocks.shape[1:])
            grown[: len(blocks)] = blocks
            self._layers[layer] = grown

    def _create(self, layer: int, key_MKD: Tensor, value_MKD: Tensor) -> None:
        self._shapes[layer] = (key_MKD.shape[1], key_MKD.shape[2], value_MKD.shape[2])
        size = key_MKD.shape[1] * (key_MKD.shape[2] + value_MKD.shape[2])
        self._layers[layer] = key_MKD.new_zeros(self.num_blocks, BLOCK_SIZE, size)


class BlockBooks:
    """Who holds which block: allocation, sharing by count, and growth of the store up to a capacity in blocks."""

    def __init__(self, store: KVStore, capacity: int) -> None:
        self.store = store
        self.capacity = capacity
        self._free: list[int] = []
        self._holders: Counter[int] = Counter()

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return len(self._holders)

    def allocate(self) -> int | None:
        """A block of one's own, or None when the capacity is used up."""
        if not self._free and not self._grow():
            return None
        block = self._free.pop()
        self._holders[block] = 1
        return block

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each of `blocks`."""
        self._holders.update(blocks)

    def is_shared(self, block: int) -> bool:
        """Whether others hold it too, so that it must not be written."""
        return self._holders[block] > 1

    def is_held(self, block: int) -> bool:
        """Whether anybody holds it."""
        return block in self._holders

    def give_back(self, blocks: Iterable[int]) -> list[int]:
        """One holder less; answers the blocks that nobody holds any more."""
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
