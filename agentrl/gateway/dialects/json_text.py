"""JSON of requests and answers as bytes, and server-sent events."""

from __future__ import annotations

import json

import orjson
from pydantic import JsonValue

from agentrl.gateway.base import Refusal, RequestError
from agentrl.security.bounded_json import UnreadableAnswerError, read_json

KEEP_ALIVE = b": wait\n\n"
"""A comment in a stream of events; clients skip it."""


def read_body(body: bytes) -> JsonValue:
    """Parse the body of a request.

    Half of a surrogate pair, which JavaScript clients produce when they cut a text, is replaced by U+FFFD.

    Raises:
        RequestError: the body is not JSON, or is nested too deeply.
    """
    try:
        value = read_json(body)
    except UnreadableAnswerError as error:
        raise RequestError(Refusal.INVALID, f"body: {error}") from None
    return _without_surrogates(value) if b"\\u" in body else value


def _without_surrogates(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(each) for each in value]
    if isinstance(value, dict):
        return {str(_without_surrogates(key)): _without_surrogates(each) for key, each in value.items()}
    return value


def dumped(value: JsonValue) -> bytes:
    """Return the JSON of a value."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # an integer of more than 64 bits, or half of a surrogate pair
        return json.dumps(value, separators=(",", ":")).encode()


def event(data: JsonValue, name: str = "") -> bytes:
    """Return a server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (head, dumped(data))


def arguments_object(text: str) -> dict[str, JsonValue] | None:
    """Return the arguments of a call; None if the text is not a JSON object."""
    try:
        value = read_json(text)
    except UnreadableAnswerError:
        return None
    return value if isinstance(value, dict) else None
