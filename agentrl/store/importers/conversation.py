"""Logged conversations: messages, and tool calls matched with their answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import cast

from pydantic import JsonValue

from agentrl.data.fields import FieldError, read_messages
from agentrl.store.text import write_json
from agentrl.types.messages import Message, MessageToolCall, message_text
from agentrl.types.rollout import Outcome, ToolCall


def read_conversation(value: JsonValue, field: str) -> list[Message]:
    """Read chat messages. Tool-call arguments become an object if their text is a JSON object; else they stay text.

    Raises:
        FieldError: the value is not a list of chat messages.
    """
    wrong_texts: dict[tuple[int, int], str] = {}
    messages = read_messages(_without_wrong_arguments(value, wrong_texts), field)
    for (message, call), text in wrong_texts.items():
        messages[message]["tool_calls"][call]["function"]["arguments"] = text
    return messages


def split_at_answer(messages: Sequence[Message], field: str) -> tuple[list[Message], list[Message]]:
    """Split messages into the prompt and the rest, which starts with the first assistant message.

    Raises:
        FieldError: there is no assistant message.
    """
    prompt = list(takewhile(lambda message: message["role"] != "assistant", messages))
    if len(prompt) == len(messages):
        raise FieldError(f"field '{field}': no assistant message, so there is no rollout")
    return prompt, list(messages[len(prompt) :])


def tool_calls_of(messages: Sequence[Message], trajectory: int) -> Iterator[ToolCall]:
    """Yield a conversation's tool calls. Answers are matched to calls by id, or by position if no answer has an id.

    An answered call counts as `ok`, because a log does not mark failures. A call without an answer is `aborted`.
    """
    turns = (position for position, message in enumerate(messages) if message["role"] == "assistant")
    for turn, position in enumerate(turns):
        answers = list(takewhile(lambda message: message["role"] == "tool", messages[position + 1 :]))
        for number, call in enumerate(messages[position].get("tool_calls", ())):
            function, answer = call["function"], _answer(call, number, answers)
            arguments = function["arguments"]
            yield ToolCall(
                function["name"],
                arguments if isinstance(arguments, str) else write_json(arguments),
                "" if answer is None else message_text(answer, write_json),
                Outcome.ABORTED if answer is None else Outcome.OK,
                turn=turn,
                trajectory=trajectory,
            )


def _answer(call: MessageToolCall, number: int, answers: Sequence[Message]) -> Message | None:
    if any(answer.get("tool_call_id") for answer in answers):
        return next((answer for answer in answers if answer.get("tool_call_id") == call.get("id")), None)
    return answers[number] if number < len(answers) else None


def _without_wrong_arguments(value: JsonValue, found: dict[tuple[int, int], str]) -> JsonValue:
    """Replace argument texts that are not JSON objects with empty arguments, and add the replaced texts to `found`."""
    if not isinstance(value, list):
        return value
    return [_message(message, position, found) for position, message in enumerate(value)]


def _message(message: JsonValue, position: int, found: dict[tuple[int, int], str]) -> JsonValue:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_call(call, (position, number), found) for number, call in enumerate(calls)]}


def _call(call: JsonValue, place: tuple[int, int], found: dict[tuple[int, int], str]) -> JsonValue:
    function = call.get("function", call) if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(arguments, str) or not arguments or _is_object(arguments):
        return call
    found[place] = arguments
    emptied = cast(JsonValue, {**cast(dict[str, JsonValue], function), "arguments": {}})
    return {**cast(dict[str, JsonValue], call), "function": emptied}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
