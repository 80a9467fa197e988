"""Content of messages: texts are joined, and an image becomes a part that names the hash of the image's bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from pydantic import JsonValue

from agentrl.gateway.base import RequestError
from agentrl.gateway.dialects.fields import Fields, JsonObject
from agentrl.types.messages import image_part
from agentrl.utils.images import ImageError, content_hash, read_image

Part = str | JsonObject
"""A text, or the content part of an image."""


class Images:
    """Images of a request."""

    def __init__(self) -> None:
        self.by_name: dict[str, bytes] = {}

    def part(self, fields: Fields, key: str, url: str) -> JsonObject:
        """Store the image of a data URL, and return the content part that names the image.

        Raises:
            RequestError: the URL is not a data URL, or the image cannot be read.
        """
        if not url.startswith("data:"):
            raise fields.refusal(key, "expected a data URL with the image's bytes; addresses are not fetched")
        try:
            name, data = _read(url)
        except ImageError as error:
            raise fields.refusal(key, f"cannot read the image: {error}") from None
        self.by_name[name] = data
        return image_part(name)


@lru_cache(maxsize=64)  # a client sends all images of a conversation again with every turn
def _read(url: str) -> tuple[str, bytes]:
    data = read_image(url)
    return content_hash(data), data


def read_content(fields: Fields, key: str, part: Callable[[Fields], Part]) -> JsonValue:
    """Return the content of a message: text, or a list of parts if the message has an image.

    Texts of several parts are joined without a separator, as in chat templates.

    Args:
        part: reads one part.

    Raises:
        RequestError: the content is missing or malformed.
    """
    value = fields.get(key)
    if isinstance(value, str):
        return value
    if value is None:
        raise fields.wrong_type(key, "text or a list of parts")
    return joined([part(each) for each in fields.each(key, "text or a list of parts")])


def joined(parts: list[Part]) -> JsonValue:
    """Return parts as the content of a message."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "".join(texts)
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def unknown_part(fields: Fields, known: str) -> RequestError:
    """Return the error for a part or item of a type that is not supported."""
    kind = fields.get("type")
    got = repr(kind[:40]) if isinstance(kind, str) else "none"
    return fields.refusal("type", f"expected {known}, got {got}")
