"""KV cache of all conversations: reused over turns, shared by conversations with equal prefixes, evicted if idle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.engines.torch.jobs import KVSession
from agentrl.engines.torch.paged_kv import BLOCK_SIZE, BlockAllocator, KVStore, num_blocks_for
from agentrl.engines.torch.prefix_index import PrefixIndex


class Conversations:
    """Keeps the KV of each session until the session is released or evicted; used only by the engine's thread.

    Args:
        capacity: maximum number of blocks in use.
        shares: whether conversations may share KV.
        full_length: number of blocks reserved for each conversation from its start (deterministic mode), so that it is
            not evicted for other conversations. None: blocks are reserved for running turns only; idle conversations
            may be evicted.
    """

    def __init__(self, store: KVStore, capacity: int, *, shares: bool = True, full_length: int | None = None) -> None:
        self.capacity = capacity
        self.allocator = BlockAllocator(store, capacity + 1)  # + 1: a block and its copy are in use together
        self.index = PrefixIndex()
        self.num_evicted = 0
        self._store = store
        self._shares = shares
        self._full_length = full_length
        self._sessions: dict[str, KVSession] = {}
        self._reserved = 0
        self._clock = 0

    @property
    def kv_tokens(self) -> int:
        """Capacity of the blocks in use, in tokens."""
        return self.allocator.num_used * BLOCK_SIZE

    def open(self, session: str) -> KVSession:
        """The session's conversation; a new one if there is none or if it is busy with another request."""
        found = self._sessions.get(session)
        return KVSession(session) if found is None or found.busy else found

    def has_room(self, session: str) -> bool:
        """Whether the session has reserved blocks between its turns."""
        found = self._sessions.get(session)
        return found is not None and not found.busy and found.reserved > 0

    def reserve(self, conversation: KVSession, length: int) -> bool:
        """Reserve blocks for `length` tokens. Return False if other reservations leave too few blocks."""
        need = num_blocks_for(length) if self._full_length is None else self._full_length
        if self._reserved - conversation.reserved + need > self.capacity:
            return False
        self._reserved += need - conversation.reserved
        conversation.reserved = need
        return True

    def must_wait(self, conversation: KVSession, token_ids: Sequence[int]) -> bool:
        """Whether another conversation is computing KV that this conversation could share."""
        return self._shares and not _common_length(conversation, token_ids) and self.index.find(token_ids).pending

    def begin(self, conversation: KVSession, token_ids: Sequence[int]) -> None:
        """Start a turn: reuse the cached KV of `token_ids` from this or other conversations.

        Afterwards the conversation is busy and has blocks for all of `token_ids`. Other conversations can wait until
        these blocks are computed, and then share them.
        """
        conversation.busy = True
        if conversation.session:
            self._sessions.setdefault(conversation.session, conversation)
        own = _common_length(conversation, token_ids)
        self._cut(conversation, own)
        conversation.origin = hash((conversation.origin if own else 0, own, len(token_ids)))
        if not own:
            self._share(conversation, token_ids)
        self.extend(conversation, len(token_ids))
        # decoded KV differs from prefilled KV in the last bits: deterministic mode shares prefilled blocks only
        if self._full_length is None or conversation.prefilled_only:
            self._offer(conversation, token_ids, pending=True)

    def prefilled(self, conversation: KVSession) -> None:
        """Mark the blocks that `begin` allocated as computed; later tokens are decoded."""
        self.index.ready(conversation.blocks.tolist())
        conversation.prefilled_only = False

    def end(self, conversation: KVSession) -> None:
        """End a turn. The KV stays for the session's next turn and for other conversations.

        The KV is dropped instead if the conversation has no session, or if its session was released or has another
        conversation.
        """
        if self._sessions.get(conversation.session) is not conversation:
            return self.drop(conversation)
        conversation.busy = False
        self._clock += 1
        conversation.last_used = self._clock
        if self._full_length is None:
            self._reserved -= conversation.reserved
            conversation.reserved = 0
            full = conversation.token_ids[: conversation.num_cached // BLOCK_SIZE * BLOCK_SIZE]
            self._offer(conversation, full, pending=False)
        return None

    def release(self, session: str) -> None:
        """Drop a session's KV: immediately, or when the running turn ends."""
        if (found := self._sessions.pop(session, None)) is not None and not found.busy:
            self.drop(found)

    def drop(self, conversation: KVSession) -> None:
        """Drop a conversation and free its blocks."""
        self._cut(conversation, 0)
        self._reserved -= conversation.reserved
        conversation.reserved = 0
        if self._sessions.get(conversation.session) is conversation:
            del self._sessions[conversation.session]

    def forget_all(self, running: Sequence[KVSession]) -> None:
        """Drop all KV after a weight update. Running conversations continue, and recompute all their KV."""
        for conversation in [*running, *(c for c in self._sessions.values() if not c.busy)]:
            self._cut(conversation, 0)
            conversation.prefilled_only = True
            conversation.origin = hash((0, 0, len(conversation.token_ids)))  # all its tokens are prefilled again
        self.index.clear()

    def evict_idle(self) -> bool:
        """Evict the least recently used idle conversation; False if there is none."""
        idle = [c for c in self._sessions.values() if not c.busy and len(c.blocks)]
        if idle:
            self.num_evicted += 1
            self.drop(min(idle, key=lambda conversation: conversation.last_used))
        return bool(idle)

    def extend(self, conversation: KVSession, length: int) -> None:
        """Allocate reserved blocks for `length` tokens; evict idle conversations if no block is free."""
        missing = num_blocks_for(length) - len(conversation.blocks)
        if missing > 0:
            fresh = [self._allocate() for _ in range(missing)]
            conversation.blocks = np.append(conversation.blocks, fresh)

    def _share(self, conversation: KVSession, token_ids: Sequence[int]) -> None:
        found = self.index.find(token_ids)
        conversation.prefilled_only = True
        self.allocator.share(found.blocks)
        conversation.blocks = np.array(found.blocks, dtype=np.int64)
        conversation.num_cached = len(found.blocks) * BLOCK_SIZE
        conversation.num_indexed = len(found.blocks)
        if found.tail is not None:
            self._copy_tail(conversation, found.tail)
            conversation.num_cached = len(token_ids)

    def _offer(self, conversation: KVSession, token_ids: Sequence[int], *, pending: bool) -> None:
        """Add the blocks of `token_ids` to the index for other conversations."""
        if self._shares:
            first = conversation.num_indexed
            conversation.num_indexed = self.index.add(token_ids, conversation.blocks, first, pending=pending)

    def _copy_tail(self, conversation: KVSession, tail: int) -> None:
        self.allocator.share([tail])  # otherwise allocating the copy could evict the source
        self.extend(conversation, conversation.num_cached + 1)
        self._store.copy_block(tail, int(conversation.blocks[-1]))
        self._give_back([tail])

    def _cut(self, conversation: KVSession, length: int) -> None:
        """Keep the first `length` tokens. A partly kept block will be written again, so it must not be shared."""
        held = num_blocks_for(length)
        kept, rest = conversation.blocks[:held], conversation.blocks[held:]
        conversation.blocks = kept
        cut_short = length < conversation.num_cached and length % BLOCK_SIZE > 0
        conversation.num_cached = min(length, conversation.num_cached)
        conversation.num_indexed = min(conversation.num_indexed, length // BLOCK_SIZE)
        self._give_back(rest.tolist())
        if cut_short:
            self._own_last_block(conversation)

    def _own_last_block(self, conversation: KVSession) -> None:
        last = int(conversation.blocks[-1])
        if not self.allocator.is_shared(last):
            self.index.forget([last])
            return
        conversation.blocks = conversation.blocks[:-1]
        self.extend(conversation, conversation.num_cached)
        self._store.copy_block(last, int(conversation.blocks[-1]))
        self._give_back([last])

    def _allocate(self) -> int:
        while (block := self.allocator.allocate()) is None:
            self.evict_idle()
        return block

    def _give_back(self, blocks: Sequence[int]) -> None:
        self.index.forget(self.allocator.give_back(blocks))


class NoKV(Conversations):
    """KV cache for models whose KV cannot be reused: holds no blocks; all tokens count as computed."""

    def begin(self, conversation: KVSession, token_ids: Sequence[int]) -> None:
        """Mark all tokens as computed: there is no prefill."""
        conversation.num_cached = len(token_ids)

    def extend(self, conversation: KVSession, length: int) -> None:
        """Do nothing: there are no blocks."""

    def forget_all(self, running: Sequence[KVSession]) -> None:
        """Do nothing: there is no KV."""


def _common_length(conversation: KVSession, token_ids: Sequence[int]) -> int:
    """Number of leading `token_ids` that the conversation has cached."""
    shorter = min(conversation.num_cached, len(token_ids))
    cached = conversation.token_ids
    if cached[:shorter] == token_ids[:shorter]:
        return shorter
    return next(i for i in range(shorter) if cached[i] != token_ids[i])
