"""Tokens that follow a model turn. The template's text is cached for each shape (roles and fields) of messages."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence

from agentrl.chat.encode import Frame, TextEncoder
from agentrl.chat.template import Template
from agentrl.chat.template_cache import Shape, key_of, learn, values_of
from agentrl.types.messages import Message, ToolSchema

# More shapes than a run needs. The cache needs a limit: a model can make any number of calls in a turn, and the answers
# to each number of calls have another shape.
MAX_SHAPES = 1024


class Continuations:
    """Computes the tokens of messages after a model turn. Text of the messages never becomes control tokens."""

    def __init__(self, template: Template, encoder: TextEncoder) -> None:
        self._template, self._encoder = template, encoder
        self._shapes: dict[Hashable, tuple[Shape, Frame] | None] = {}

    def ids(self, messages: Sequence[Message], schemas: Sequence[ToolSchema], history: Sequence[Message]) -> list[int]:
        """Return the tokens of `messages` and the generation prompt, which follow the end-of-turn token.

        The end-of-turn token is encoded together with this text and then dropped, because some tokenizers encode the
        start of a text differently than the same characters inside a text.

        Args:
            history: the conversation up to and including the model turn. If it is empty, the text is rendered as after
                a first turn.
        """
        end = self._template.end_before(messages)
        if history and (self._template.history_matters or not all(map(_has_names, messages))):
            text = self._template.follow(self._encoder.hide(list(messages)), schemas, history)
            ids = self._encoder.encode_hidden(end.token + text)
        else:
            ids = self._without_history(end.token, messages, schemas)
        return ids[ids.index(end.token_id) + 1 :]

    def _without_history(self, end: str, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> list[int]:
        encoder = self._encoder
        known, values = self.known(messages, schemas), values_of(messages)
        if known and values is not None:
            shape, frame = known
            ids = encoder.encode_framed(end + shape.fill(values), frame)
            if ids is not None:
                return ids
            return encoder.encode_hidden(end + shape.fill([encoder.hide(value) for value in values]))
        hidden = encoder.hide(list(messages))
        text = end + self._template.follow(hidden, self._template.stand_in(schemas))
        return encoder.encode(text) if hidden == list(messages) else encoder.encode_hidden(text)

    def known(self, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> tuple[Shape, Frame] | None:
        """Return the cached shape of `messages` and its frame (see `Frame`); None if the shape cannot be cached."""
        tools: Hashable = bool(schemas)
        if schemas and self._template.tools_matter:
            tools = json.dumps([schema.for_template() for schema in schemas])
        key = (tools, key_of(messages))
        if key not in self._shapes:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = self._learn(messages, self._template.stand_in(schemas))
        return self._shapes[key]

    def _learn(self, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> tuple[Shape, Frame] | None:
        shape = learn(messages, lambda probes: self._template.follow(probes, schemas))
        if shape is None:
            return None
        first, *rest = shape.literals
        return shape, self._encoder.frame(self._template.end_before(messages).token + first, rest)


def _has_names(message: Message) -> bool:
    """Whether a tool message has the name and the id of the call that it answers; true for other messages."""
    return message["role"] != "tool" or ("name" in message and "tool_call_id" in message)
