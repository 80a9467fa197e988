"""The conversation as a model that plays the user reads it: with swapped roles, and without tools and thoughts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentrl.types.messages import Message, message_text
from agentrl.utils.chat_endpoint import without_thought

BEGIN = "The conversation begins. Write your first message."
SILENCE = "(The assistant wrote nothing.)"


def user_view(messages: Sequence[Message], instructions: str) -> list[Message]:
    """Return the messages for the user model. The last message is the one to answer.

    For example, with instructions I, the conversation

        system S, user "hi", assistant calls a tool, tool answers, assistant "done"

    becomes

        system I, user BEGIN, assistant "hi", user "done"
    """
    view = [Message(role="system", content=instructions), Message(role="user", content=BEGIN)]
    for role, text in _spoken(messages):
        if text and view[-1]["role"] == role and len(view) > 2:
            view[-1]["content"] = f"{view[-1].get('content')}\n\n{text}"
        elif text:
            view.append(Message(role=role, content=text))
    if view[-1]["role"] != "user":
        view.append(Message(role="user", content=SILENCE))
    return view


def num_answers(messages: Sequence[Message], prompt: Sequence[Message]) -> int:
    """Number of messages that the user has written after the prompt."""
    return sum(role == "assistant" for role, _ in _spoken(messages)) - sum(
        role == "assistant" for role, _ in _spoken(prompt)
    )


def _spoken(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield (swapped role, text) of each message between assistant and user.

    A user message directly after tool calls is left out: it is a tool's answer, as in ReAct.
    """
    after_calls = False
    for message in messages:
        if message["role"] == "assistant":
            after_calls = bool(message.get("tool_calls"))
            yield "user", without_thought(_text(message)).strip()
        elif message["role"] == "user" and not after_calls:
            yield "assistant", _text(message).strip()


def _text(message: Message) -> str:
    return message_text(message, lambda part: "[image]")
