"""Tokens of a conversation as a chat server renders it: all messages, with the thoughts that the template shows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agentrl.chat.encode import TextEncoder
from agentrl.chat.history import with_thoughts
from agentrl.chat.probes import CALL_ID, PLAIN_TURN, USER, calling_turn
from agentrl.chat.template import Template
from agentrl.types.messages import Message, ToolSchema


def served_ids(
    template: Template,
    encoder: TextEncoder,
    messages: Sequence[Message],
    schemas: Sequence[ToolSchema],
    num_opening: int,
    *,
    only: Collection[str],
) -> list[int]:
    """Return the tokens of the rendered messages, with the generation prompt.

    Args:
        num_opening: number of first messages, which come from the dataset and are rendered as they are.
        only: control tokens that text of these first messages must not become. Text of later messages must not become
            any control token.

    Raises:
        TemplateError: the template refuses the messages.
    """
    opening, later = list(messages[:num_opening]), list(messages[num_opening:])
    hidden = [encoder.hide(opening, only), encoder.hide(later)]
    shown = [*hidden[0], *with_thoughts(hidden[1], template)]  # after `hide`, which must not hide the tags added here
    text = template.render(shown, schemas, prompt=True)
    return encoder.encode(text) if hidden == [opening, later] else encoder.encode_hidden(text)


def check_history(template: Template, schemas: Sequence[ToolSchema]) -> None:
    """Check that the template renders a history, with a call and its answer if there are tools.

    Raises:
        TemplateError: the template refuses the history; the text contains the reason.
    """
    turn = calling_turn(schemas[0].name) if schemas else PLAIN_TURN
    answer = Message(role="tool", name=schemas[0].name, tool_call_id=CALL_ID, content="x") if schemas else USER
    template.render([USER, turn, answer], schemas, prompt=True)
