"""Saved conversations as trajectories of demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from agentrl.errors import DataError
from agentrl.types.messages import Message, ToolSchema
from agentrl.types.trajectory import Author, Segment, Trajectory

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat


def dialogue(chat: ChatFormat, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> Trajectory:
    """Convert a saved conversation to a trajectory, with the same append-only method as a rollout.

    Each assistant turn becomes a `demonstration` segment with its end-of-turn token. The turn is rendered as the last
    message of a conversation, so that it looks like a sampled turn. A leading assistant message belongs to the prompt.

    Raises:
        DataError: there are no messages.
        TemplateError: the template refuses the messages.
    """
    if not messages:
        raise DataError("a conversation needs at least one message")
    is_turn = [index > 0 and message["role"] == "assistant" for index, message in enumerate(messages)]
    first = is_turn.index(True) if any(is_turn) else len(messages)
    trajectory = Trajectory([Segment(Author.PROMPT, chat.start(messages[:first], schemas))], messages)
    turns = [*(index for index in range(first, len(messages)) if is_turn[index]), len(messages)]
    for turn, following in pairwise(turns):
        turn_ids = chat.demonstration(messages[turn], schemas)
        trajectory.append(Segment(Author.DEMONSTRATION, turn_ids))
        replies, is_last = messages[turn + 1 : following], following == len(messages)
        if replies or not is_last:
            trajectory.append(_reply(chat, replies, schemas, messages[: turn + 1], turn_ids[-1]))
    return trajectory


def _reply(
    chat: ChatFormat,
    messages: Sequence[Message],
    schemas: Sequence[ToolSchema],
    history: Sequence[Message],
    last_id: int,
) -> Segment:
    author = Author.TOOL if messages and messages[0]["role"] == "tool" else Author.USER
    closed = chat.is_closed(last_id, messages)
    return Segment(author, chat.extend(messages, schemas, turn_closed=closed, history=history))
