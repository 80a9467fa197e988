"""The KV of all conversations: reused over turns, shared by equal beginnings, bounded, evicted when idle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.engines.jobs import Conversation
from agentrl.engines.paged_kv import BLOCK_SIZE, BlockBooks, KVStore, num_blocks_for
from agentrl.engines.prefix_index import PrefixIndex


class Conversations:
    """Keeps each session's KV until it is released; lives on the engine's thread.

    Args:
        capacity: blocks that may be held at a time.
        shares: whether conversations may use what others have computed.
        full_length: in deterministic mode the blocks reserved for a conversation from its start, so that none is
            ever evicted; None reserves for a turn under way only, and evicts idle conversations.
    """

    def __init__(self, store: KVStore, capacity: int, *, shares: bool = True, full_length: int | None = None) -> None:
        self.capacity = capacity
        self.books = BlockBooks(store, capacity + 1)  # the one more is the source of a copy in the making
        self.index = PrefixIndex()
        self.num_evicted = 0
        self._store = store
        self._shares = shares
        self._full_length = full_length
        self._sessions: dict[str, Conversation] = {}
        self._reserved = 0
        self._clock = 0

    @property
    def kv_tokens(self) -> int:
        """Tokens that the blocks in use have room for."""
        return self.books.num_used * BLOCK_SIZE

    def open(self, session: str) -> Conversation:
        """The session's conversation; a new nameless one where it has none or is busy with another request."""
        found = self._sessions.get(session)
        return Conversation(session) if found is None or found.busy else found

    def has_room(self, session: str) -> bool:
        """Whether the session holds a reservation between its turns."""
        found = self._sessions.get(session)
        return found is not None and not found.busy and found.reserved > 0

    def reserve(self, conversation: Conversation, length: int) -> bool:
        """Promise room for `length` tokens; False where running conversations leave too little."""
        need = num_blocks_for(length) if self._full_length is None else self._full_length
        if self._reserved - conversation.reserved + need > self.capacity:
            return False
        self._reserved += need - conversation.reserved
        conversation.reserved = need
        return True

    def must_wait(self, conversation: Conversation, token_ids: Sequence[int]) -> bool:
        """Whether others are just computing what this conversation could share."""
        return self._shares and not _common_length(conversation, token_ids) and self.index.find(token_ids).pending

    def begin(self, conversation: Conversation, token_ids: Sequence[int]) -> None:
        """Keep what is cached of `token_ids`, its own or others'.

        Afterwards the conversation is busy, holds blocks for all of `token_ids`, and others can wait for them.
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
        # decoded bits differ from prefilled ones in the last place: deterministic sharing is of prefilled blocks only
        if self._full_length is None or conversation.prefilled_only:
            self._offer(conversation, token_ids, pending=True)

    def prefilled(self, conversation: Conversation) -> None:
        """What `begin` announced is computed; from here on tokens are decoded."""
        self.index.ready(conversation.blocks.tolist())
        conversation.prefilled_only = False

    def end(self, conversation: Conversation) -> None:
        """The turn is over; the KV stays, for the session's next turn and for others."""
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
        """Forget a session: at once, or when the turn under way ends."""
        if (found := self._sessions.pop(session, None)) is not None and not found.busy:
            self.drop(found)

    def drop(self, conversation: Conversation) -> None:
        """Forget a conversation and give back all it holds."""
        self._cut(conversation, 0)
        self._reserved -= conversation.reserved
        conversation.reserved = 0
        if self._sessions.get(conversation.session) is conversation:
            del self._sessions[conversation.session]

    def forget_all(self, running: Sequence[Conversation]) -> None:
        """The weights changed: no KV is valid any more. Running conversations go on, from their first token."""
        for conversation in [*running, *(c for c in self._sessions.values() if not c.busy)]:
            self._cut(conversation, 0)
            conversation.prefilled_only = True
            conversation.origin = hash((0, 0, len(conversation.token_ids)))  # all that is there is prefilled again
        self.index.clear()

    def evict_idle(self) -> bool:
        """Forget the idle conversation that was used longest ago; False where there is none."""
        idle = [c for c in self._sessions.values() if not c.busy and len(c.blocks)]
        if idle:
            self.num_evicted += 1
            self.drop(min(idle, key=lambda conversation: conversation.last_used))
        return bool(idle)

    def extend(self, conversation: Conversation, length: int) -> None:
        """Hold blocks for `length` tokens; room was reserved, so only idle conversations stand in the way."""
        missing = num_blocks_for(length) - len(conversation.blocks)
        if missing > 0:
            fresh = [self._allocate() for _ in range(missing)]
            conversation.blocks = np.append(conversation.blocks, fresh)

    def _share(self, conversation: Conversation, token_ids: Sequence[int]) -> None:
        found = self.index.find(token_ids)
        conversation.prefilled_only = True
        self.books.share(found.blocks)
        conversation.blocks = np.array(found.blocks, dtype=np.int64)
        conversation.num_cached = len(found.blocks) * BLOCK_SIZE
        conversation.num_indexed = len(found.blocks)
        if found.tail is not None:
            self._copy_tail(conversation, found.tail)
            conversation.num_cached = len(token_ids)

    def _offer(self, conversation: Conversation, token_ids: Sequence[int], *, pending: bool) -> None:
        """Let others find the blocks of `token_ids`."""
        if self._shares:
            first = conversation.num_indexed
            conversation.num_indexed = self.index.add(token_ids, conversation.blocks, first, pending=pending)

    def _copy_tail(self, conversation: Conversation, tail: int) -> None:
        self.books.share([tail])  # or making room for its copy could evict it
        self.extend(conversation, conversation.num_cached + 1)
        self._store.copy_block(tail, int(conversation.blocks[-1]))
        self._give_back([tail])

    def _cut(self, conversation: Conversation, length: int) -> None:
        """Keep the first `length` tokens; a block cut in the middle will be written, so it must be one's own."""
        held = num_blocks_for(length)
        kept, rest = conversation.blocks[:held], conversation.blocks[held:]
        conversation.blocks = kept
        cut_short = length < conversation.num_cached and length % BLOCK_SIZE > 0
        conversation.num_cached = min(length, conversation.num_cached)
        conversation.num_indexed = min(conversation.num_indexed, length // BLOCK_SIZE)
        self._give_back(rest.tolist())
        if cut_short:
            self._own_last_block(conversation)

    def _own_last_block(self, conversation: Conversation) -> None:
        last = int(conversation.blocks[-1])
        if not self.books.is_shared(last):
            self.index.forget([last])
            return
        conversation.blocks = conversation.blocks[:-1]
        self.extend(conversation, conversation.num_cached)
        self._store.copy_block(last, int(conversation.blocks[-1]))
        self._give_back([last])

    def _allocate(self) -> int:
        while (block := self.books.allocate()) is None:
            self.evict_idle()
        return block

    def _give_back(self, blocks: Sequence[int]) -> None:
        self.index.forget(self.books.give_back(blocks))


class NoKV(Conversations):
    """For models whose past cannot be reused: nothing is held, everything counts as computed."""

    def begin(self, conversation: Conversation, token_ids: Sequence[int]) -> None:
        """There is nothing to prefill."""
        conversation.num_cached = len(token_ids)

    def extend(self, conversation: Conversation, length: int) -> None:
        """There are no blocks."""

    def forget_all(self, running: Sequence[Conversation]) -> None:
        """There is nothing to forget."""


def _common_length(conversation: Conversation, token_ids: Sequence[int]) -> int:
    """How many of `token_ids` the conversation has cached."""
    shorter = min(conversation.num_cached, len(token_ids))
    cached = conversation.token_ids
    if cached[:shorter] == token_ids[:shorter]:
        return shorter
    return next(i for i in range(shorter) if cached[i] != token_ids[i])
