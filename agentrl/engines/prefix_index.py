"""Finds cached blocks by the tokens they hold, so that equal beginnings are computed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agentrl.engines.paged_kv import BLOCK_SIZE, IntArray

Key = tuple[int, tuple[int, ...]]
"""(block before it, tokens in it). The block before stands for everything before, as its holders hold that too."""

ROOT = 0


@dataclass(frozen=True, slots=True)
class Found:
    """The longest cached beginning of some tokens.

    Attributes:
        blocks: full blocks to share.
        tail: a block whose first tokens are the remaining ones, to be copied; None where there is none.
        pending: the block that would come next is still being computed.
    """

    blocks: list[int]
    tail: int | None = None
    pending: bool = False


@dataclass
class PrefixIndex:
    """A tree of blocks; what is announced is pending until it is ready."""

    _blocks: dict[Key, int] = field(default_factory=dict)
    _keys: dict[int, list[Key]] = field(default_factory=dict)
    _pending: set[int] = field(default_factory=set)

    def find(self, token_ids: Sequence[int]) -> Found:
        """Blocks for `token_ids`: full ones, then one for exactly what remains."""
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
        """Enter the blocks of `token_ids` from number `first` on; answers how many full ones are now in the tree.

        Stops where the tree already has another block for the same tokens.
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
        """These blocks are computed."""
        self._pending.difference_update(blocks)

    def forget(self, blocks: Iterable[int]) -> None:
        """These blocks no longer hold what they held."""
        for block in blocks:
            self._pending.discard(block)
            for key in self._keys.pop(block, ()):
                self._blocks.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        for table in (self._blocks, self._keys, self._pending):
            table.clear()
