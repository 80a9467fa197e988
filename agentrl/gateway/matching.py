"""Cleans and hashes messages, to recognise messages that a client sends back in another form.

Clients change what they send back. They rewrite arguments (`2.0` becomes `2`), drop thoughts, split or join texts, and
add cache marks. A digest covers what such changes do not affect: the role, the text without thoughts, and the names and
arguments of calls. Numbers are compared as doubles.
"""

from __future__ import annotations

import json
import marshal
import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from pydantic import JsonValue

from agentrl.gateway.base import AnswerCall
from agentrl.types.messages import Message, MessageToolCall, ToolSchema, image_part, message_text

_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)
_SIZE = 16


def cleaned(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with only the fields that a template reads; adjacent assistant messages are joined.

    Empty system messages are dropped. Content without images becomes text.
    """
    result: list[Message] = []
    for message in map(_plain, messages):
        if message["role"] == "assistant" and result and result[-1]["role"] == "assistant":
            result[-1] = _joined(result[-1], message)
        elif message["role"] != "system" or message.get("content"):
            result.append(message)
    return result


def message_digest(message: Message) -> bytes:
    """Return the digest of a cleaned message."""
    calls = ((call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ()))
    return _digest(message["role"], _text(message), calls)


def answer_digest(content: str, calls: Sequence[AnswerCall]) -> bytes:
    """Return the digest of an answer, which is also the digest of the message in which a client sends it back."""
    return _digest("assistant", content, ((call.name, call.arguments) for call in calls))


def tools_digest(tools: Sequence[ToolSchema]) -> bytes:
    """Return the digest of the tools, from which the digest of a conversation is computed."""
    functions = [tool.function for tool in tools]
    shown = [(each.name, each.description, each.parameters) for each in functions]
    # marshal is several times faster than JSON; version 2: in later versions, shared objects change the bytes
    return blake2b(marshal.dumps(shown, 2), digest_size=_SIZE).digest()


def chained(digest: bytes, following: bytes) -> bytes:
    """Return the digest of a conversation followed by a message."""
    return blake2b(digest + following, digest_size=_SIZE).digest()


def call_ids(message: Message) -> tuple[str, ...]:
    """The ids of a message's calls; "" for a call without id."""
    return tuple(call.get("id", "") for call in message.get("tool_calls", ()))


def _digest(role: str, text: str, calls: Iterable[tuple[str, JsonValue]]) -> bytes:
    if role == "assistant" and "<think>" in text:
        text = _THOUGHTS.sub("", text)
    named = [(name, _arguments(arguments)) for name, arguments in calls]
    return _hash(f"{role}\0{text.strip()}\0{named}" if named else f"{role}\0{text.strip()}")


def _hash(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "replace"), digest_size=_SIZE).digest()


def _arguments(arguments: JsonValue) -> str:
    """Return the canonical text of the arguments; text that is not JSON is only stripped."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    if not text.strip():
        return "{}"
    try:
        read = json.loads(text, parse_int=_double, parse_float=_double)
        return json.dumps(read, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text.strip()


def _double(digits: str) -> float:
    return float(digits) + 0.0  # -0 becomes 0, as in JavaScript


def _plain(message: Message) -> Message:
    role = message["role"]
    plain = Message(role=role, content=_content(message))
    if role == "assistant":
        if thoughts := message.get("reasoning_content"):
            plain["reasoning_content"] = thoughts
        if calls := message.get("tool_calls"):
            plain["tool_calls"] = list(calls)
    if role == "tool" and (call_id := message.get("tool_call_id")):
        plain["tool_call_id"] = call_id
    return plain


def _content(message: Message) -> JsonValue:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    if not any(isinstance(part, dict) and part.get("type") == "image" for part in parts):
        return message_text({"content": parts})
    shown: list[JsonValue] = [kept for part in parts if (kept := _kept(part))]
    return shown


def _kept(part: JsonValue) -> JsonValue:
    """Return an image or text part with its known fields only; None for an empty or unknown part."""
    if isinstance(part, dict) and part.get("type") == "image":
        return image_part(str(part.get("image")))
    text = part.get("text") if isinstance(part, dict) else part
    return {"type": "text", "text": text} if isinstance(text, str) and text else None


def _text(message: Message) -> str:
    return message_text(message, of_other=lambda part: f"\0{part.get('image')}" if isinstance(part, dict) else "")


def _joined(first: Message, second: Message) -> Message:
    joined = Message(role="assistant", content=message_text(first) + message_text(second))
    thoughts = [each["reasoning_content"] for each in (first, second) if "reasoning_content" in each]
    if thoughts:
        joined["reasoning_content"] = "\n".join(thoughts)
    calls: list[MessageToolCall] = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    if calls:
        joined["tool_calls"] = calls
    return joined
