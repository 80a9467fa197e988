"""The dialect of OpenAI's Responses: items of the conversation."""

from __future__ import annotations

from collections.abc import Callable

from agentrl.gateway.dialects.content import Images, Part, read_content, unknown_part
from agentrl.gateway.dialects.fields import Fields
from agentrl.gateway.dialects.openai import arguments_of, as_arguments, past_call, role
from agentrl.gateway.dialects.tool_schemas import name_in
from agentrl.types.messages import Message, MessageToolCall

_ROLES = ("system", "developer", "user", "assistant")
_STORED = "the gateway stores no items: set `store` to false, so that your client sends the item itself"


class Items:
    """Messages of a conversation, read item by item.

    The API splits a turn of the model into items: thoughts, text and calls. Adjacent items of a turn become one
    message.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.images = Images()

    def read(self, body: Fields) -> None:
        """Read `instructions` and `input`.

        Raises:
            RequestError: an item is malformed, or of a type that is not supported.
        """
        if instructions := body.optional_text("instructions"):
            self.messages.append(Message(role="system", content=instructions))
        given = body.get("input")
        if isinstance(given, str):
            self.messages.append(Message(role="user", content=given))
            return
        for item in body.each("input", "text or a list of items"):
            self._read_item(item)
        if not given:
            raise body.refusal("input", "expected text or at least one item")

    def _read_item(self, item: Fields) -> None:
        kind = item.get("type") or "message"
        read = _READERS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise unknown_part(item, f"one of {', '.join(_READERS)}")
        read(self, item)

    def _message(self, item: Fields) -> None:
        name = role(item, _ROLES)
        content = read_content(item, "content", self._part)
        if name != "assistant":
            self.messages.append(Message(role=name, content=content))
            return
        message = self._assistant()
        before = message.get("content")
        both_text = isinstance(before, str) and isinstance(content, str)
        message["content"] = f"{before}{content}" if both_text else content

    def _thoughts(self, item: Fields) -> None:
        summary = [each.text("text") for each in item.each("summary")]
        thoughts = [each.text("text") for each in item.each("content")] or summary
        message = self._assistant()
        if text := message.get("reasoning_content", "") + "".join(thoughts):
            message["reasoning_content"] = text

    def _function_call(self, item: Fields) -> None:
        name = name_in(item.optional_text("namespace"), item.text("name"))
        self._add_call(past_call(item.name("call_id"), name, arguments_of(item)))

    def _custom_call(self, item: Fields) -> None:
        self._add_call(past_call(item.name("call_id"), item.name("name"), as_arguments(item.text("input"))))

    def _output(self, item: Fields) -> None:
        content = read_content(item, "output", self._part)
        self.messages.append(Message(role="tool", content=content, tool_call_id=item.name("call_id")))

    def _reference(self, item: Fields) -> None:
        raise item.refusal("type", f"item_reference: {_STORED}")

    def _add_call(self, call: MessageToolCall) -> None:
        self._assistant().setdefault("tool_calls", []).append(call)

    def _assistant(self) -> Message:
        """Return the assistant message to which the current item belongs: the last message, or a new one."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append(Message(role="assistant", content=""))
        return self.messages[-1]

    def _part(self, part: Fields) -> Part:
        kind = part.get("type")
        if kind in ("input_text", "output_text", "text"):
            return part.text("text")
        if kind == "refusal":
            return part.text("refusal")
        if kind == "input_image":
            return self.images.part(part, "image_url", part.text("image_url"))
        raise unknown_part(part, "'input_text', 'output_text' or 'input_image'")


_READERS: dict[str, Callable[[Items, Fields], None]] = {
    "message": Items._message,
    "reasoning": Items._thoughts,
    "function_call": Items._function_call,
    "function_call_output": Items._output,
    "custom_tool_call": Items._custom_call,
    "custom_tool_call_output": Items._output,
    "item_reference": Items._reference,
}
