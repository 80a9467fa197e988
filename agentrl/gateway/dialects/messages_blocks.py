"""The dialect of Anthropic's Messages: messages and their blocks."""

from __future__ import annotations

from agentrl.gateway.dialects.content import Images, Part, joined, read_content, unknown_part
from agentrl.gateway.dialects.fields import Fields, JsonObject
from agentrl.gateway.dialects.openai import past_call
from agentrl.types.messages import Message

_BILLING = "x-anthropic-billing-header:"
"""Start of a line that is dropped from system blocks, because some versions of Claude Code change the line with every
request."""
_ROLES = ("user", "assistant", "system")


class Blocks:
    """Messages of a conversation, read block by block.

    Tool results, which this dialect puts into user messages, become separate messages.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.images = Images()

    def read(self, body: Fields) -> None:
        """Read `system` and `messages`.

        Raises:
            RequestError: a message is malformed or has a block that is not supported, there is no message, or the last
                message is the assistant's.
        """
        if body.get("system"):
            self.messages.append(_system(body, "system"))
        for message in body.each("messages"):
            self._message(message)
        if not body.get("messages"):
            raise body.refusal("messages", "expected at least one message")
        if self.messages[-1]["role"] == "assistant":
            raise body.refusal(
                "messages",
                "the last message is the assistant's, which cannot be continued: add a user message or tool result",
            )

    def _message(self, fields: Fields) -> None:
        role = fields.text("role")
        if role not in _ROLES:
            raise fields.refusal("role", f"expected one of {', '.join(_ROLES)}, got {role[:40]!r}")
        if role == "system":
            self.messages.append(_system(fields, "content"))
        elif isinstance(fields.get("content"), str):
            self.messages.append(Message(role=role, content=fields.get("content")))
        elif role == "user":
            self._user(fields)
        else:
            self._assistant(fields)

    def _user(self, fields: Fields) -> None:
        parts: list[Part] = []
        for block in self._blocks(fields):
            if block.get("type") != "tool_result":
                parts.append(self._part(block))
                continue
            self._flush(parts)
            self.messages.append(self._tool_result(block))
        self._flush(parts)

    def _flush(self, parts: list[Part]) -> None:
        if parts:
            self.messages.append(Message(role="user", content=joined(parts)))
            parts.clear()

    def _tool_result(self, block: Fields) -> Message:
        given = block.get("content")
        content = "" if given is None else read_content(block, "content", self._part)
        return Message(role="tool", content=content, tool_call_id=block.name("tool_use_id"))

    def _assistant(self, fields: Fields) -> None:
        texts, thoughts, calls = [], [], []
        for block in self._blocks(fields):
            kind = block.get("type")
            if kind == "text":
                texts.append(block.text("text"))
            elif kind == "thinking":
                thoughts.append(block.text("thinking"))
            elif kind == "tool_use":
                arguments: JsonObject = dict(block.required_fields("input").values)
                calls.append(past_call(block.name("id"), block.text("name"), arguments))
            elif kind != "redacted_thinking":
                raise unknown_part(block, "'text', 'thinking' or 'tool_use'")
        message = Message(role="assistant", content="".join(texts))
        if any(thoughts):
            message["reasoning_content"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        self.messages.append(message)

    def _blocks(self, fields: Fields) -> list[Fields]:
        if fields.get("content") is None:
            raise fields.wrong_type("content", "text or a list of blocks")
        return [*fields.each("content", "text or a list of blocks")]

    def _part(self, block: Fields) -> Part:
        kind = block.get("type")
        if kind == "text":
            return block.text("text")
        if kind == "image":
            return self._image(block.required_fields("source"))
        raise unknown_part(block, "'text', 'image' or 'tool_result'")

    def _image(self, source: Fields) -> Part:
        if source.get("type") != "base64":
            raise source.refusal("type", "expected 'base64': the image's bytes; addresses and files are not fetched")
        return self.images.part(source, "data", f"data:{source.text('media_type')};base64,{source.text('data')}")


def _system(fields: Fields, key: str) -> Message:
    text = fields.get(key)
    content = _without_billing(text) if isinstance(text, str) else read_content(fields, key, _system_text)
    return Message(role="system", content=content)


def _system_text(block: Fields) -> Part:
    if block.get("type") != "text":
        raise unknown_part(block, "'text'")
    return _without_billing(block.text("text"))


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_BILLING) else text
