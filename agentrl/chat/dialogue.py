"""Saved conversations as trajectories of demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl.errors import DataError
from agentrl.types.messages import Message, ToolSchema
from agentrl.types.trajectory import Author, Segment, Trajectory

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat


def dialogue(chat: ChatFormat, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> Trajectory:
    """Convert a saved conversation to a trajectory, with the same append-only method as a rollout.

    Each assistant turn becomes a `demonstration` segment with its end-of-turn token. It is rendered as the last
    message, so it looks like a sampled turn. A leading assistant message belongs to the prompt.

    Raises:
        DataError: there are no messages.
        TemplateError: the template refuses the messages.
    """
    if not messages:
        raise DataError("a conversation needs at least one message")
    is_turn = [index > 0 and message["role"] == "assistant" for index, message in enumerate(messages)]
    first = is_turn.index(True) if any(is_turn) else len(messages)
    trajectory = Trajectory([Segment(Author.PROMPT, chat.start(messages[:first], schemas))], messages)
    pending: list[Message] = []
    for number, message in enumerate(messages[first:]):
        if message["role"] != "assistant":
            pending.append(message)
            continue
        if number:
            trajectory.append(_reply(chat, pending, schemas))
            pending = []
        trajectory.append(Segment(Author.DEMONSTRATION, chat.demonstration(message, schemas)))
    if pending:
        trajectory.append(_reply(chat, pending, schemas))
    return trajectory


def _reply(chat: ChatFormat, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> Segment:
    author = Author.TOOL if messages and messages[0]["role"] == "tool" else Author.USER
    return Segment(author, chat.extend(messages, schemas, turn_closed=True))
