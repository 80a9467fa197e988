"""Small test conversations that show the text that a chat template writes around a model turn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from pydantic import JsonValue

from agentrl.types.messages import FunctionCall, FunctionSchema, Message, MessageToolCall, ToolSchema

TURN = "zqTURNqz"  # placeholder for the model's text
CALL_ID = "zqCALL0qz"  # some templates require ids of nine letters and digits
RESULT = "zqRESULTqz"  # placeholder for a tool's answer
USER: Message = {"role": "user", "content": "Hi"}
REPLY: Message = {"role": "assistant", "content": "Hello"}
PLAIN_TURN: Message = {"role": "assistant", "content": TURN}
OTHER_TOOLS = [ToolSchema(function=FunctionSchema(name=name, description=f"Does {name}.")) for name in ("f", "g")]


def calling_turn(name: str, content: str = "", arguments: JsonValue = None) -> Message:
    """An assistant message that calls a tool."""
    return Message(role="assistant", content=content, tool_calls=[_call(name, CALL_ID, arguments)])


def _call(name: str, call_id: str, arguments: JsonValue = None) -> MessageToolCall:
    return MessageToolCall(id=call_id, type="function", function=FunctionCall(name=name, arguments=arguments or {}))


def answers_of_tools(number: int) -> list[Message]:
    """Return `number` tool messages with a placeholder as their content."""
    return [
        Message(role="tool", name="f", tool_call_id=CALL_ID[:-3] + f"{index}qz", content=RESULT)
        for index in range(number)
    ]


def turn_of(answers: Sequence[Message], last: Message = PLAIN_TURN) -> Message:
    """Return a model turn with one call for each of the tool messages `answers`; the last call has the argument `TURN`.

    Args:
        last: a model turn. If an answer has no name or no id, a call of this turn provides it.
    """
    made = [_call("f", CALL_ID), *last.get("tool_calls", ())]
    calls = []
    for number, answer in enumerate(answers, start=1):
        call = made[min(number, len(made) - 1)]
        name, call_id = (
            answer.get("name", call["function"]["name"]),
            answer.get("tool_call_id", call.get("id", CALL_ID)),
        )
        calls.append(_call(name, call_id))
    calls[-1]["function"]["arguments"] = {"x": TURN}
    return Message(role="assistant", content="", tool_calls=calls)


def without_contents(message: Message) -> Message:
    """Return the message with a placeholder for its content, and without the arguments of its calls."""
    content = "x" if message.get("content") else ""
    calls = [_call(call["function"]["name"], call.get("id", CALL_ID)) for call in message.get("tool_calls", ())]
    kept = {key: message[key] for key in ("role", "name", "tool_call_id") if key in message}
    return cast("Message", {**kept, "content": content, **({"tool_calls": calls} if calls else {})})


def with_text_arguments(message: Message) -> Message:
    """Write the arguments of calls as JSON text."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return cast("Message", {**message, "tool_calls": calls})
