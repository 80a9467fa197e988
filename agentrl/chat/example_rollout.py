"""Converts an example conversation to a trajectory like that of a rollout. The chat template writes the model turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, cast

from agentrl.chat.parsers.fit import Arguments, written_turn
from agentrl.errors import TemplateError
from agentrl.types.messages import Message, ToolSchema, message_text
from agentrl.types.trajectory import Author, Segment, Trajectory

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat


def example_rollout(chat: ChatFormat, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> Trajectory:
    """Convert messages to a trajectory.

    Model turns have no thoughts. If the generation prompt opens thoughts, the model turn begins by closing them.

    Raises:
        TemplateError: the template refuses the messages.
    """
    first = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
    trajectory = Trajectory([Segment(Author.PROMPT, chat.start(messages[:first], schemas))], messages)
    for start, group in _runs(messages, first):
        if group[0]["role"] == "assistant":
            trajectory.append(Segment(Author.DEMONSTRATION, _turn(chat, group[0], schemas)))
            continue
        closed = chat.is_closed(trajectory.segments[-1].token_ids[-1], group)
        ids = chat.extend(group, schemas, turn_closed=closed, history=messages[:start])
        trajectory.append(Segment(Author.TOOL if group[0]["role"] == "tool" else Author.USER, ids))
    return trajectory


def _runs(messages: Sequence[Message], first: int) -> Iterator[tuple[int, list[Message]]]:
    """Yield (start position, group) from `first` on. A group is a model turn, or all messages up to the next turn."""
    numbered = enumerate(messages[first:], start=first)
    for _, group in groupby(numbered, key=lambda each: each[1]["role"] == "assistant"):
        run = list(group)
        yield run[0][0], [message for _, message in run]


def _turn(chat: ChatFormat, message: Message, schemas: Sequence[ToolSchema]) -> list[int]:
    made = [call["function"] for call in message.get("tool_calls", ())]
    calls = [(call["name"], cast(Arguments, call["arguments"])) for call in made]  # example arguments are not text
    text = written_turn(chat, schemas, calls, message_text(message))
    if text is None:
        raise TemplateError("the chat template does not write the model's turn after the generation prompt")
    template = chat.template
    end = template.end_of_calls if calls else template.end_of_turn
    ids: list[int] = chat.tokenizer.encode(text.removeprefix(chat.opened) + end.text, add_special_tokens=False)
    return ids
