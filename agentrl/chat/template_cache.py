"""Cached continuations: for messages of one shape, the template's fixed text with slots for the contents.

A continuation is the text that a template writes after a model turn (see `continuation.Continuations`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from agentrl.errors import TemplateError
from agentrl.types.messages import Message

Follow = Callable[[Sequence[Message]], str]


def _inside_quotes(text: str) -> str:
    """Return the result of `content | tojson` without the quotes, which belong to the fixed text."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


# Transformations that a template may apply to a content. All contents of a shape have the same transformation.
FORMS: tuple[Callable[[str], str], ...] = (str, str.strip, _inside_quotes, lambda text: _inside_quotes(text.strip()))
# Contents that a template might treat specially: outer whitespace, quotes, braces, markup, template tags, no text.
PROBES = (
    *("", " ", "\n", "x", "  lead", "\n\tlead", "trail  ", "trail\n\n", " both \n", "two\n\nlines", "0", "None"),
    *('say "hi"', "it's", "back\\slash \\n", "{}", '{"a": [1, {"b": "c"}]}', "[1]", "{{ x }}{% if y %}", "$x ${y}"),
    *("<b>&amp;</b>", "<", "é 日本語 🙂", "a\r\nb", "\x00\u2028", "Error: no such file", "http://x/?a=b&c=%20"),
    *("<think>\nx\n</think>\n\ny", "<tool_response>\nx\n</tool_response>", "<tool_call>\n{}\n</tool_call>", "[INST] x"),
    *("false", "x" * 3000),
)
_SLOT = re.compile(r"zq(\d{5})qz")
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Shape:
    """Text `literals[0] + values[slots[0]] + literals[1] + ...`; slots are indices into the result of `values_of`.

    The values at the indices in `contents` are transformed by `form`.
    """

    literals: tuple[str, ...]
    slots: tuple[int, ...]
    contents: frozenset[int]
    form: Callable[[str], str]

    def fill(self, values: Sequence[str]) -> str:
        """Return the text that the template would render."""
        pieces = [self.literals[0]]
        for literal, slot in zip(self.literals[1:], self.slots, strict=True):
            pieces += (self.form(values[slot]) if slot in self.contents else values[slot], literal)
        return "".join(pieces)


def key_of(messages: Sequence[Message]) -> tuple[tuple[str, ...], ...]:
    """Return the cache key of messages: their roles and field names."""
    return tuple((message["role"], *message) for message in messages)


def values_of(messages: Sequence[Message]) -> list[str] | None:
    """Return the field values of the messages, without roles; None if a value cannot be part of a shape."""
    values: list[str] = []
    for message in messages:
        for key, value in message.items():
            if key == "role":
                continue
            # `learn` tests names and ids with plain words only, so only plain words are supported
            if not isinstance(value, str) or (key != "content" and not _PLAIN.fullmatch(value)):
                return None
            values.append(value)
    return values


def learn(messages: Sequence[Message], follow: Follow) -> Shape | None:
    """Learn the shape of `messages`; None if the template does more than insert the contents.

    The template is rendered with probe texts in place of the contents. Every content gets every probe once, and
    neighbouring contents get different probes. A shape is accepted only if it predicts all these renderings.
    """
    fields = [key for message in messages for key in message if key != "role"]
    contents = frozenset(index for index, key in enumerate(fields) if key == "content")
    try:
        pieces = _SLOT.split(follow(_with_values(messages, [f"zq{index:05d}qz" for index in range(len(fields))])))
        slots = tuple(map(int, pieces[1::2]))
        if [slot for slot in slots if slot in contents] != sorted(contents):
            return None
        candidates = [Shape(tuple(pieces[::2]), slots, contents, form) for form in FORMS]
        for shift in range(len(PROBES)):
            values = [
                PROBES[(shift + index) % len(PROBES)] if index in contents else f"zr{shift:03d}{index:03d}r"
                for index in range(len(fields))
            ]
            text = follow(_with_values(messages, values))
            candidates = [shape for shape in candidates if shape.fill(values) == text]
    except TemplateError:
        return None
    return candidates[0] if candidates else None


def _with_values(messages: Sequence[Message], values: Sequence[str]) -> list[Message]:
    """Replace all fields except roles by `values`, in order."""
    rest = iter(values)
    return [
        cast("Message", {key: value if key == "role" else next(rest) for key, value in message.items()})
        for message in messages
    ]
