"""Reads the images of a row from its image column and its messages, and inserts them into the prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from agentrl.data.fields import FieldError
from agentrl.data.rows.base import Row
from agentrl.types.messages import Message, image_part
from agentrl.utils.images import ImageError, content_hash, read_image

MARK = "<image>"
"""Placeholder in a prompt's text for an image from the row's image column."""
_KINDS = ("image", "image_url")
_SOURCES = ("image", "image_url", "url", "path", "bytes")


def with_images(messages: Sequence[Message], row: Row, column: str) -> tuple[list[Message], dict[str, bytes]]:
    """Return (messages, name -> image bytes). Each image part of the returned messages contains an image name.

    An image part without an image is a placeholder. If the row's `column` has images, `<image>` in a text is a
    placeholder too. Each placeholder gets the next image of `column`.

    Raises:
        FieldError: an image cannot be read, or the number of placeholders differs from the number of images.
    """
    places = _Places(row.get(column), column)
    placed = [places.message(message) for message in messages]
    places.check()
    return placed, places.images


class _Places:
    def __init__(self, given: JsonValue, column: str) -> None:
        self._column = column
        self._given = given if isinstance(given, list) else [] if given is None else [given]
        self._num_used = 0
        self.images: dict[str, bytes] = {}

    def message(self, message: Message) -> Message:
        content = message.get("content")
        parts = content if isinstance(content, list) else [content]
        placed = [each for part in parts for each in self._part(part)]
        if placed == parts:
            return message
        changed = message.copy()
        changed["content"] = placed
        return changed

    def check(self) -> None:
        if (num_given := len(self._given)) != self._num_used:
            raise FieldError(
                f"field '{self._column}': {num_given} images, but the prompt has {self._num_used} placeholders "
                f"({MARK}, or a part of type image)"
            )

    def _part(self, part: JsonValue) -> list[JsonValue]:
        if isinstance(part, dict) and part.get("type") in _KINDS:
            own = next((part[key] for key in _SOURCES if part.get(key) is not None), None)
            return [self._next() if own is None else self._read(own, "a part of the prompt")]
        text = _text_of(part)
        if not self._given or text is None or MARK not in text:
            return [part]
        pieces = re.split(f"({re.escape(MARK)})", text)
        return [self._next() if piece == MARK else {"type": "text", "text": piece} for piece in pieces if piece]

    def _next(self) -> JsonValue:
        number, self._num_used = self._num_used, self._num_used + 1
        if number >= len(self._given):
            return None  # `check` reports the missing image
        return self._read(self._given[number], f"{self._column}[{number}]")

    def _read(self, value: JsonValue, field: str) -> JsonValue:
        try:
            data = read_image(value)
        except ImageError as error:
            raise FieldError(f"field '{field}': {error}") from error
        self.images[name := content_hash(data)] = data
        return image_part(name)


def _text_of(part: JsonValue) -> str | None:
    text = part.get("text") if isinstance(part, Mapping) else part
    return text if isinstance(text, str) else None
