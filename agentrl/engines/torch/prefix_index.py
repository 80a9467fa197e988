"""Index of cached blocks by their tokens, so that equal prefixes are computed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agentrl.engines.torch.paged_kv import BLOCK_SIZE, IntArray

Key = tuple[int, tuple[int, ...]]
"""Key of a block: (previous block, tokens of the block). The previous block identifies the full prefix."""

ROOT = 0


@dataclass(frozen=True, slots=True)
class Found:
    """Longest cached prefix of some tokens.

    Attributes:
        blocks: full blocks to share.
        tail: block that starts with the tokens after `blocks`; it is copied and not shared. None: no such block.
        pending: whether the next block is still being computed.
    """

    blocks: list[int]
    tail: int | None = None
    pending: bool = False


@dataclass
class PrefixIndex:
    """Tree of blocks; a block that is still being computed is pending."""

    _blocks: dict[Key, int] = field(default_factory=dict)
    _keys: dict[int, list[Key]] = field(default_factory=dict)
    _pending: set[int] = field(default_factory=set)

    def find(self, token_ids: Sequence[int]) -> Found:
        """Find full blocks for `token_ids`, then a block for exactly the remaining tokens."""
        found: list[int] = []
        parent = ROOT
        for start in range(0, len(token_ids), BLOCK_SIZE):
            key = (parent, tuple(token_ids[start : start + BLOCK_SIZE]))
            block = self._blocks.get(key)
            if block is None:
                return Found(found)
            if block in self._pending:
                return Found(found, pending=True)
            if len(key[1]) < BLOCK_SIZE:
                return Found(found, tail=block)
            found.append(block)
            parent = block
        return Found(found)

    def add(self, token_ids: Sequence[int], blocks: IntArray, first: int, *, pending: bool) -> int:
        """Add the blocks of `token_ids`, from block number `first` on.

        Adding stops at the first block for which the tree already has another block with equal tokens. Return the
        number of leading full blocks that are in the tree.
        """
        for number in range(first, -(-len(token_ids) // BLOCK_SIZE)):
            tokens = tuple(token_ids[number * BLOCK_SIZE : (number + 1) * BLOCK_SIZE])
            key, block = (int(blocks[number - 1]) if number else ROOT, tokens), int(blocks[number])
            if self._blocks.setdefault(key, block) != block:
                return number
            self._keys.setdefault(block, []).append(key)
            if pending:
                self._pending.add(block)
        return len(token_ids) // BLOCK_SIZE

    def ready(self, blocks: Iterable[int]) -> None:
        """Mark blocks as computed."""
        self._pending.difference_update(blocks)

    def forget(self, blocks: Iterable[int]) -> None:
        """Remove blocks from the tree."""
        for block in blocks:
            self._pending.discard(block)
            for key in self._keys.pop(block, ()):
                self._blocks.pop(key, None)

    def clear(self) -> None:
        """Remove all blocks."""
        for table in (self._blocks, self._keys, self._pending):
            table.clear()
