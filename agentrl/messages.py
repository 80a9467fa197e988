"""Chat messages and tool schemas, in the OpenAI shapes that tokenizers' templates and datasets use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NotRequired, TypedDict

from pydantic import BaseModel, ConfigDict, JsonValue


class FunctionCall(TypedDict):
    """A call as a message carries it; `arguments` is an object, as chat templates expect."""

    name: str
    arguments: JsonValue


class MessageToolCall(TypedDict):
    """One entry of an assistant message's `tool_calls`."""

    id: NotRequired[str]
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict):
    """One chat message. `content` is text, or a list of parts for multimodal models."""

    role: str
    content: NotRequired[JsonValue]
    tool_calls: NotRequired[list[MessageToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


def message_text(message: Message | Mapping[str, object], of_other: Callable[[object], str] = lambda part: "") -> str:
    """The text of a message; of one in parts that of all of them, joined by nothing, as chat templates join them.

    Args:
        of_other: what stands for a part without text, such as an image.
    """
    content = message.get("content")
    parts = content if isinstance(content, list) else [] if content is None else [content]
    return "".join(_part_text(part, of_other) for part in parts)


def image_part(name: str) -> dict[str, JsonValue]:
    """The part of a message's content that stands for an image, which is called by the hash of its bytes."""
    return {"type": "image", "image": name}


def image_names(messages: Iterable[Message]) -> list[str]:
    """The images of messages, in order, each as often as it is shown."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return [str(part.get("image")) for part in parts if isinstance(part, dict) and part.get("type") == "image"]


def _part_text(part: object, of_other: Callable[[object], str]) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else of_other(part)


class FunctionSchema(BaseModel):
    """What the model is told about a function; `parameters` is a JSON schema, kept whole."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    description: str = ""
    parameters: dict[str, JsonValue] = {"type": "object", "properties": {}}


class ToolSchema(BaseModel):
    """A tool as chat templates render it: `{"type": "function", "function": {...}}`."""

    model_config = ConfigDict(frozen=True)

    type: Literal["function"] = "function"
    function: FunctionSchema

    @property
    def name(self) -> str:
        """The name the model calls it by."""
        return self.function.name

    def for_template(self) -> dict[str, JsonValue]:
        """The plain dictionary a chat template renders, in the order the schema was written."""
        return self.model_dump(mode="json")
