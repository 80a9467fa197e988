"""Check, before a run, that a chat template allows appending messages turn by turn."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from agentrl.chat.probes import CALL_ID, PLAIN_TURN, REPLY, TURN, USER, calling_turn
from agentrl.chat.template import Template
from agentrl.errors import TemplateError
from agentrl.types.messages import Message, ToolSchema


def check_template(template: Template, schemas: Sequence[ToolSchema], roles: Collection[str]) -> None:
    """Check that messages of these roles can be appended again and again after model turns.

    Raises:
        TemplateError: messages cannot be appended with this template; the error text contains the reason.
    """
    _check_generation_prompt(template, schemas)
    shapes = [(role, number) for role in sorted(roles) for number in ((1, 2) if role == "tool" else (1,))]
    for role, num_messages in shapes:
        _check_contents(template, schemas, _new_messages(role, num_messages, schemas))
    for role, num_messages in shapes:
        _check_histories(template, schemas, _new_messages(role, num_messages, schemas), with_tools="tool" in roles)


def _new_messages(role: str, num_messages: int, schemas: Sequence[ToolSchema]) -> list[Message]:
    contents = [f"zqNEW{index}qz" for index in range(num_messages)]
    if role != "tool":
        return [Message(role=role, content=content) for content in contents]
    name = _name(schemas)
    return [Message(role=role, name=name, tool_call_id=CALL_ID, content=content) for content in contents]


def _name(schemas: Sequence[ToolSchema]) -> str:
    return schemas[0].name if schemas else "f"


def _check_generation_prompt(template: Template, schemas: Sequence[ToolSchema]) -> None:
    """Refuse a template that writes an assistant header but does not add it as generation prompt.

    A template without any header is accepted, for example one in which `[/INST]` ends the user's turn.
    """
    bare = template.render([USER], schemas, prompt=False)
    if template.render([USER], schemas, prompt=True) != bare:
        return
    answered = template.render([USER, PLAIN_TURN], schemas, prompt=False)
    header = answered[len(bare) :].partition(TURN)[0] if answered.startswith(bare) else ""
    if header.strip():
        raise TemplateError(
            f"the chat template has no generation prompt: {header!r} precedes the assistant's content, "
            "but add_generation_prompt does not add it"
        )


def _check_contents(template: Template, schemas: Sequence[ToolSchema], messages: Sequence[Message]) -> None:
    seen = re.findall(r"zqNEW\dqz", template.follow(messages, schemas))
    if seen != [message["content"] for message in messages]:
        what = "loses" if len(seen) < len(messages) else "repeats" if len(seen) > len(messages) else "reorders"
        raise TemplateError(
            f"the chat template {what} the content of {messages[0]['role']} messages after a model turn"
        )


def _check_histories(
    template: Template, schemas: Sequence[ToolSchema], messages: Sequence[Message], *, with_tools: bool
) -> None:
    """Check that the messages can also follow a second model turn."""
    template.follow(messages, schemas, [USER, REPLY, USER, REPLY])
    if with_tools:
        answer = _new_messages("tool", 1, schemas)
        template.follow(messages, schemas, [USER, calling_turn(_name(schemas), "Hello"), *answer, REPLY])
