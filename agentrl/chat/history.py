"""How a chat template shows the thoughts of earlier turns, and whether its generation prompt opens new thoughts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

from agentrl.chat.parsers.thinking import THINK, THINK_END, join_thinking
from agentrl.chat.probes import TURN, USER, calling_turn
from agentrl.chat.template import Template
from agentrl.errors import TemplateError
from agentrl.types.messages import Message, message_text

FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Fields from which chat templates read an assistant message's thoughts."""
_THOUGHT = "zqTHOUGHTqz"


def opened_thoughts(template: Template) -> str:
    """Return the end of the generation prompt from an unclosed `<think>` on; "" if the prompt has none.

    Raises:
        TemplateError: the template refuses a user message.
    """
    without, text = (template.render([USER], (), prompt=prompt) for prompt in (False, True))
    added = text[len(without) :] if text.startswith(without) else text
    start = added.rfind(THINK)
    return added[start:] if start >= 0 and THINK_END not in added[start:] else ""


def with_thoughts(messages: Sequence[Message], template: Template) -> list[Message]:
    """Return the messages with thoughts in the field that the template reads, or in the content if it reads none."""
    if not any("reasoning_content" in message for message in messages):
        return list(messages)
    name = field_of(template)
    return [_with_thoughts(message, name) if "reasoning_content" in message else message for message in messages]


@lru_cache(maxsize=64)
def field_of(template: Template) -> str | None:
    """Return the field from which the template reads an assistant message's thoughts; None if it reads none."""
    return next((name for name in FIELDS if _reads(template, name)), None)


def as_one_text(message: Message) -> Message:
    """Return the message with its thoughts in its content."""
    return _with_thoughts(message, None) if "reasoning_content" in message else message


def _with_thoughts(message: Message, name: str | None) -> Message:
    changed: dict[str, object] = {**message}
    thoughts = str(changed.pop("reasoning_content"))
    if name is None:
        changed["content"] = join_thinking(thoughts, message_text(message))
    else:
        changed[name] = thoughts
    return cast(Message, changed)


def _reads(template: Template, name: str) -> bool:
    turns: list[Mapping[str, object]] = [
        {"role": "assistant", "content": TURN, name: _THOUGHT},
        {**calling_turn("f"), name: _THOUGHT},
    ]
    return any(_shows(template, cast(Message, turn)) for turn in turns)


def _shows(template: Template, turn: Message) -> bool:
    try:
        return _THOUGHT in template.render([USER, turn], (), prompt=False)
    except TemplateError:  # the template does not support this turn
        return False
