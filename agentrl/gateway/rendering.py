"""Tokens of a request: the prompt of a new conversation, or the messages after a known turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from pydantic import JsonValue

from agentrl.errors import DataError, TemplateError
from agentrl.gateway.base import Refusal, RequestError
from agentrl.gateway.turns import Turn
from agentrl.types.messages import FunctionCall, Message, MessageToolCall, ToolSchema, image_names

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat


@dataclass(frozen=True, slots=True)
class Rendered:
    """Messages as passed to the template, and their tokens.

    Attributes:
        image_starts: for each image in the messages, the position of the image's first token in the context.
    """

    messages: Sequence[Message]
    token_ids: Sequence[int]
    image_starts: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Renderer:
    """Renders messages with one chat format. `images` are the bytes of all images of the rollout, by name."""

    chat: ChatFormat
    images: dict[str, bytes] = field(default_factory=dict)

    def root(self, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> Rendered:
        """Render the prompt of a new conversation.

        Raises:
            RequestError: the template refuses the messages, or the model accepts no images.
        """
        refused: list[Exception] = []
        for each in _readings(_named(messages, _Calls()), first=1):
            named = self.chat.history(each)
            try:
                return self._rendered(named, self.chat.start(named, schemas, self.images), 0)
            except (TemplateError, DataError) as error:
                refused.append(error)
        raise RequestError(Refusal.INVALID, str(refused[0])) from refused[0]

    def following(self, turn: Turn, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> Rendered | None:
        """Render the messages after a turn; None if the template cannot append them to the turn.

        Raises:
            RequestError: the model accepts no images.
        """
        calls = _Calls()
        calls.add(turn.issued, turn.message or Message(role="assistant"))
        sampled = turn.segment.token_ids if turn.segment else ()
        last_id = sampled[-1] if sampled else None
        for named in _readings(_named(messages, calls), first=0):
            try:
                closed = self.chat.is_closed(last_id, named)
                ids = self.chat.extend(named, schemas, turn_closed=closed, images=self.images, history=turn.history)
            except DataError as error:
                raise RequestError(Refusal.INVALID, str(error)) from error
            except TemplateError:
                continue
            return self._rendered(named, ids, len(turn.context) + len(sampled))
        return None

    def _rendered(self, messages: Sequence[Message], token_ids: Sequence[int], start: int) -> Rendered:
        data = [self.images[name] for name in image_names(messages)]
        return Rendered(messages, token_ids, [start + at for at in self.chat.image_starts(token_ids, data)])


def _readings(messages: Sequence[Message], first: int) -> Iterator[Sequence[Message]]:
    """Yield the messages, then variants with user messages in place of system messages that a template may refuse.

    Args:
        first: number of leading messages that the first variant leaves unchanged; each later variant leaves one fewer.
    """
    yield messages
    for allowed in range(first, -1, -1):
        if any(message["role"] == "system" for message in messages[allowed:]):
            yield _as_user(messages, allowed)


def _as_user(messages: Sequence[Message], first: int) -> list[Message]:
    """Turn system messages after the first `first` messages into user messages; join adjacent user messages."""
    result: list[Message] = list(messages[:first])
    for message in messages[first:]:
        is_user = message["role"] in ("system", "user")
        before = result[-1] if len(result) > first and is_user and result[-1]["role"] == "user" else None
        texts = [each.get("content") for each in (before, message) if each]
        if before and all(isinstance(text, str) for text in texts):
            result[-1] = Message(role="user", content="\n\n".join(map(str, texts)))
        else:
            result.append(Message(role="user", content=message.get("content")) if is_user else message)
    return result


class _Calls:
    """Calls that tool messages may answer: the id that the client knows -> (the id in the template, name)."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}
        self._waiting: list[str] = []

    def add(self, ids: Sequence[str], turn: Message) -> None:
        """Add the calls of a turn. `ids` are the ids that the client knows; `turn` has the ids in the template."""
        calls = turn.get("tool_calls", ())
        self._waiting = [call_id or f"\0{at}" for at, call_id in zip(range(len(calls)), ids, strict=False)]
        named = ((call.get("id", ""), call["function"]["name"]) for call in calls)
        self._known.update(zip(self._waiting, named, strict=False))

    def answered(self, message: Message) -> Message:
        """Return a tool message with the id and name of its call. A message without id answers the next open call."""
        given = message.get("tool_call_id", "")
        known = given if given in self._known else next(iter(self._waiting), None) if not given else None
        if known is None:
            return message
        if known in self._waiting:
            self._waiting.remove(known)
        own, name = self._known[known]
        return Message(role="tool", name=name, tool_call_id=own, content=message.get("content"))


def _named(messages: Sequence[Message], calls: _Calls) -> list[Message]:
    """Return the messages: calls get new ids, and tool messages get the new id and the name of their call."""
    result: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            message = calls.answered(message)
        elif "tool_calls" in message:
            number = sum("tool_calls" in each for each in result)
            own = [_own_call(call, f"c{number:05d}{at:03d}") for at, call in enumerate(message["tool_calls"])]
            given = [call.get("id", "") for call in message["tool_calls"]]
            message = cast(Message, {**message, "tool_calls": own})
            calls.add(given, message)
        result.append(message)
    return result


def _own_call(call: MessageToolCall, call_id: str) -> MessageToolCall:
    """Return the call with another id. Arguments that are JSON become an object, as chat templates expect."""
    function = FunctionCall(name=call["function"]["name"], arguments=_read(call["function"]["arguments"]))
    return MessageToolCall(id=call_id, type="function", function=function)


def _read(arguments: JsonValue) -> JsonValue:
    if not isinstance(arguments, str):
        return arguments
    try:
        read: JsonValue = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return read
