"""Messages of a conversation as a server passes them to the chat template, which decides what it shows of thoughts."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.chat.parsers.thinking import THINK, THINK_END, split_thinking
from agentrl.chat.template import CALL_ID, OTHER_TOOLS, PLAIN_TURN, TURN, USER, Template, calling_turn
from agentrl.errors import TemplateError
from agentrl.types.messages import Message, ToolSchema

FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Fields of assistant messages in which chat templates read thoughts."""


def thoughts_field(template: Template) -> str | None:
    """Return the field in which the template reads the thoughts of a turn; None: it reads none.

    A turn that called a tool is rendered, because most templates show its thoughts until the next user message.
    """
    answer = Message(role="tool", name="f", tool_call_id=CALL_ID, content="x")
    for field in FIELDS:
        turn = calling_turn("f")
        turn[field] = TURN  # type: ignore[literal-required]  # templates read more fields than a message has
        for messages in ([USER, turn, answer], [USER, turn]):
            try:
                if TURN in template.render(messages, OTHER_TOOLS, prompt=len(messages) > 2):
                    return field
            except TemplateError:  # the template does not support this conversation
                continue
    return None


def check_history(template: Template, schemas: Sequence[ToolSchema]) -> None:
    """Check that the template renders a history, with a call and its answer if there are tools.

    Raises:
        TemplateError: it does not; the text contains the reason.
    """
    turn = calling_turn(schemas[0].name) if schemas else PLAIN_TURN
    answer = Message(role="tool", name=schemas[0].name, tool_call_id=CALL_ID, content="x") if schemas else USER
    template.render([USER, turn, answer], schemas, prompt=True)


def as_served(messages: Sequence[Message], num_opening: int, field: str | None) -> list[Message]:
    """Return the messages with the thoughts of model turns where the template reads them.

    That is the field `field`, apart from the content, as a server with a reasoning parser returns them. If the template
    reads no such field, thoughts are in the content, with their tags: some templates remove them from there.

    Args:
        num_opening: number of first messages, which come from the dataset and are not changed.
    """
    later = [_as_served(each, field) if each["role"] == "assistant" else each for each in messages[num_opening:]]
    return [*messages[:num_opening], *later]


def _as_served(message: Message, field: str | None) -> Message:
    served, text = message.copy(), str(message.get("content") or "")
    thoughts = served.pop("reasoning_content", None)
    if field is None:
        served["content"] = text if thoughts is None else f"{THINK}\n{thoughts}\n{THINK_END}\n\n{text}"
        return served
    if thoughts is None:
        thoughts, content = split_thinking(text)
        if not thoughts and content == text:
            return message
        served["content"] = content.lstrip("\n")
    served[field] = thoughts  # type: ignore[literal-required]  # templates read more fields than a message has
    return served
