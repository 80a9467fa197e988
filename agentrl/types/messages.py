"""Chat messages and tool schemas in OpenAI format, which chat templates and datasets use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict

from pydantic import BaseModel, ConfigDict, JsonValue


class FunctionCall(TypedDict):
    """A function call in a message; `arguments` is an object, as chat templates expect."""

    name: str
    arguments: JsonValue


class MessageToolCall(TypedDict):
    """One entry of an assistant message's `tool_calls`."""

    id: NotRequired[str]
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict):
    """One chat message. `content` is text, or a list of parts for multimodal models.

    `reasoning_content` is the thoughts of an assistant message; `content` does not contain them.
    """

    role: str
    content: NotRequired[JsonValue]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[MessageToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


def message_text(message: Message | Mapping[str, object], of_other: Callable[[object], str] = lambda part: "") -> str:
    """Return the text of a message. Texts of several parts are joined without a separator, as in chat templates.

    Args:
        of_other: converts a part without text, such as an image, to text.
    """
    content = message.get("content")
    parts = content if isinstance(content, list) else [] if content is None else [content]
    return "".join(_part_text(part, of_other) for part in parts)


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """Answer of a language model to messages.

    Attributes:
        cut: whether the answer ended because it reached its maximum number of tokens.
        num_prompt_tokens, num_tokens: tokens of the prompt and of the answer; None if they are not known.
    """

    text: str
    cut: bool = False
    num_prompt_tokens: int | None = None
    num_tokens: int | None = None


def image_part(name: str) -> dict[str, JsonValue]:
    """Return the content part for an image; `name` is the hash of its bytes."""
    return {"type": "image", "image": name}


def image_names(messages: Iterable[Message]) -> list[str]:
    """Return the names of the images in messages, in order, duplicates included."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return [str(part.get("image")) for part in parts if isinstance(part, dict) and part.get("type") == "image"]


def _part_text(part: object, of_other: Callable[[object], str]) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else of_other(part)


class FunctionSchema(BaseModel):
    """Description of a function for the model; `parameters` is a JSON schema, kept unchanged."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    description: str = ""
    parameters: dict[str, JsonValue] = {"type": "object", "properties": {}}


class ToolSchema(BaseModel):
    """Tool schema in the format of chat templates: `{"type": "function", "function": {...}}`."""

    model_config = ConfigDict(frozen=True)

    type: Literal["function"] = "function"
    function: FunctionSchema

    @property
    def name(self) -> str:
        """The name that the model uses to call the tool."""
        return self.function.name

    def for_template(self) -> dict[str, JsonValue]:
        """Return the dictionary for a chat template, with keys in the order of the schema."""
        return self.model_dump(mode="json")
