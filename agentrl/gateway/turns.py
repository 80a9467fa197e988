"""The conversations of one rollout as a tree of turns; each turn stores the tokens that were added after its parent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from agentrl.chat.base import ParsedTurn
from agentrl.gateway.base import TurnAnswer, TurnRequest
from agentrl.gateway.matching import answer_digest, call_ids, chained, message_digest, tools_digest
from agentrl.types.messages import Message, ToolSchema
from agentrl.types.rollout import Stop
from agentrl.types.trajectory import Segment

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a request in the tree.

    Attributes:
        parent: the turn that the request continues; None: the request begins a conversation.
        num_known: number of the request's messages up to and including the parent's answer.
        prompt: digest of all messages and tools of the request.
        conversation: digest of the request's tools and system texts.
    """

    parent: Turn | None
    num_known: int
    prompt: bytes
    conversation: bytes


@dataclass(eq=False, slots=True)
class Turn:
    """A turn of the model, and the messages added before it.

    Attributes:
        number: position in the order in which the turns were requested.
        asked: `max_tokens` and `stop` of the request; a repetition of the request has the same values.
        messages: the messages since the parent's answer, as passed to the template.
        token_ids: the tokens since the parent's answer; without a parent, the whole prompt.
        schemas: the tools of the request.
        branch: number of the engine session that samples the turn.
        draw: number of earlier turns that were sampled from the same context.
        images: names of the images in `messages`; their tokens begin at `image_starts` in the context.
        task: asyncio task that samples the turn; its result is the answer.
        segment: the sampled segment; None before sampling, or if no token was sampled.
        parsed, message: the parsed turn, and the turn as a message.
        answer: the answer for the client; None before the turn was sampled.
        experts: routed experts of the tokens that this turn added to its path.
        stop: the limit that ended this turn; if `refused` is true, the limit that prevented the turn after it.
        delivered: position in the order in which answers were delivered; None: not delivered.
    """

    number: int
    place: Place
    asked: tuple[int | None, tuple[str, ...]]
    messages: Sequence[Message]
    token_ids: Sequence[int]
    schemas: Sequence[ToolSchema]
    branch: int
    draw: int = 0
    images: Sequence[str] = ()
    image_starts: Sequence[int] = ()
    task: asyncio.Task[TurnAnswer] | None = None
    segment: Segment | None = None
    parsed: ParsedTurn = field(default_factory=lambda: ParsedTurn(""))
    message: Message | None = None
    answer: TurnAnswer | None = None
    experts: Tensor | None = None
    stop: Stop | None = None
    refused: bool = False
    delivered: int | None = None
    num_delivered_before: int = 0
    children: list[Turn] = field(default_factory=list)

    @property
    def parent(self) -> Turn | None:
        """The turn that this one continues."""
        return self.place.parent

    @property
    def path(self) -> list[Turn]:
        """The turns from the root to this one."""
        found, turn = [self], self.parent
        while turn is not None:
            found.append(turn)
            turn = turn.parent
        return found[::-1]

    @property
    def own_ids(self) -> Iterator[int]:
        """The tokens since the parent's answer, then the sampled tokens."""
        return chain(self.token_ids, self.segment.token_ids if self.segment else ())

    @property
    def context(self) -> list[int]:
        """The tokens before the model's turn, [T]."""
        before = chain.from_iterable(turn.own_ids for turn in self.path[:-1])
        return [*before, *self.token_ids]

    @property
    def history(self) -> list[Message]:
        """The messages up to and including this turn."""
        return [message for turn in self.path for message in turn.all_messages]

    @property
    def all_messages(self) -> list[Message]:
        """The messages since the parent's answer, and the model's message."""
        return [*self.messages, *([self.message] if self.message else [])]

    @property
    def issued(self) -> tuple[str, ...]:
        """The ids of the turn's calls, as the client knows them."""
        return tuple(call.call_id for call in self.answer.calls) if self.answer else ()


class Tree:
    """All turns of a rollout, found by the messages of a request.

    Attributes:
        turns: the turns, in the order in which they were requested.
    """

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._asked: dict[tuple[bytes, Turn | None], list[Turn]] = {}
        self._answered: dict[bytes, list[Turn]] = {}
        self._issued: dict[tuple[str, ...], bytes] = {}
        self._num_delivered = 0

    def place(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Place:
        """Return the place of a request with these tools and cleaned messages (see `matching.cleaned`)."""
        last = max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        digest = conversation = tools_digest(tools)
        parent: Turn | None = None
        for at, message in enumerate(messages):
            issued = self._issued.get(call_ids(message)) if message["role"] == "assistant" else None
            own = issued or message_digest(message)
            digest = chained(digest, own)
            if message["role"] == "system":
                conversation = chained(conversation, own)
            if at == last:
                parent = self._shown(digest, messages)
        return Place(parent, last + 1 if parent else 0, digest, conversation)

    def repeated(self, place: Place, request: TurnRequest) -> Turn | None:
        """Return the turn whose answer is sent again if the request is a repetition, else None.

        An undelivered answer is always sent again. A delivered answer is sent again only if the client marks the
        request as a repetition.
        """
        same = [turn for turn in self._asked.get((place.prompt, place.parent), ()) if turn.asked == asked(request)]
        waiting = [turn for turn in same if turn.delivered is None]
        return next(reversed(waiting or (same if request.is_retry else [])), None)

    def add(self, turn: Turn) -> None:
        """Add a turn that is going to be sampled."""
        turn.num_delivered_before = self._num_delivered
        self.turns.append(turn)
        self._asked.setdefault((turn.place.prompt, turn.parent), []).append(turn)
        if turn.parent:
            turn.parent.children.append(turn)

    def answered(self, turn: Turn, answer: TurnAnswer) -> None:
        """Record the answer of a turn, so that a later request that contains the answer is recognised."""
        turn.answer = answer
        digest = answer_digest(answer.content, answer.calls)
        self._answered.setdefault(chained(turn.place.prompt, digest), []).append(turn)
        if turn.issued:
            self._issued[turn.issued] = digest

    def deliver(self, turn_id: str) -> None:
        """Record that the client has received an answer; an unknown id is ignored."""
        for turn in reversed(self.turns):
            if turn.answer and turn.answer.turn_id == turn_id:
                turn.delivered, self._num_delivered = self._num_delivered, self._num_delivered + 1
                return

    def _shown(self, digest: bytes, messages: Sequence[Message]) -> Turn | None:
        """Return the turn whose answer ends the conversation with this digest.

        If several turns match, return the turn whose path has the most call ids that also occur in `messages`. Among
        turns with equally many such ids, return the turn whose answer was delivered last.
        """
        found = self._answered.get(digest, ())
        if len(found) < 2:
            return next(iter(found), None)
        ids = {call_ids(message) for message in messages if message["role"] == "assistant"}

        def rank(turn: Turn) -> tuple[int, int, int]:
            known = sum(each.issued in ids for each in turn.path if each.issued)
            return known, -1 if turn.delivered is None else turn.delivered, turn.number

        return max(found, key=rank)


def asked(request: TurnRequest) -> tuple[int | None, tuple[str, ...]]:
    """Return `max_tokens` and `stop` of a request, which a repetition of the request must repeat."""
    return request.max_tokens, request.stop
