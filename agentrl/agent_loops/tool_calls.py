"""Tool calls: run together, as messages, and as records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from pydantic import JsonValue

from agentrl.attempt import Outcome, ToolCall
from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.errors import ConfigError, DataError, TemplateError
from agentrl.messages import FunctionCall, Message, MessageToolCall, image_part, message_text
from agentrl.tools.toolbox import ToolResult, ToolSession

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat


def assistant_message(turn: ParsedTurn, turn_number: int) -> Message:
    """A model turn as a message."""
    if not turn.calls:
        return Message(role="assistant", content=turn.content)
    calls = [_message_call(call, _call_id(turn_number, position)) for position, call in enumerate(turn.calls)]
    return Message(role="assistant", content=turn.content, tool_calls=calls)


def tool_messages(calls: Sequence[ParsedCall], texts: Sequence[str], turn_number: int) -> list[Message]:
    """The answers to a turn's calls as messages, in call order."""
    return [
        Message(role="tool", name=call.name, tool_call_id=_call_id(turn_number, position), content=text)
        for position, (call, text) in enumerate(zip(calls, texts, strict=True))
    ]


def with_images(messages: Sequence[Message], images: Sequence[Sequence[str]]) -> list[Message]:
    """The answers with the names of each call's images before its text; all in the last where one message has them."""
    if not any(images):
        return list(messages)
    shown = images if len(images) == len(messages) else [*[()] * (len(messages) - 1), list(chain(*images))]
    return [_with_parts(message, names) for message, names in zip(messages, shown, strict=True)]


def as_shown(call: ParsedCall, result: ToolResult, chat: ChatFormat) -> ToolResult:
    """The answer as the model can see it: an error in its place where the model's processor refuses an image of it.

    Raises:
        ConfigError: it brings an image, and the model takes none.
    """
    try:
        for data in result.images:
            chat.check_image(data)
    except DataError as error:
        raise ConfigError(f"tool '{call.name}' answered with an image: {error}") from error
    except TemplateError as error:
        why = f"Error: the tool returned an image that cannot be used: {error}"
        return replace(result, text=why, outcome=Outcome.TOOL_ERROR, images=())
    return result


def _with_parts(message: Message, names: Sequence[str]) -> Message:
    text = message_text(message)
    parts: list[JsonValue] = [{"type": "text", "text": text}] if text else []
    changed = message.copy()
    changed["content"] = [*map(image_part, names), *parts] if names else message.get("content")
    return changed


def refused(why: str) -> ToolResult:
    """The answer to a call that was not run because of a limit."""
    return ToolResult(text=f"Error: {why}.", outcome=Outcome.LIMIT_ERROR)


def aborted() -> ToolResult:
    """What became of a call that the end of the rollout cut off."""
    return ToolResult(text="Error: the rollout ended first.", outcome=Outcome.ABORTED)


async def run_calls(tools: ToolSession, calls: Sequence[ParsedCall], results: list[ToolResult]) -> None:
    """Run `calls` side by side, each into its place in `results`, so that what is done outlives a cancellation."""

    async def run(position: int) -> None:
        results[position] = await tools.call(calls[position])

    if len(calls) == 1:  # the common case needs no tasks
        await run(0)
        return
    async with asyncio.TaskGroup() as group:
        for position in range(len(calls)):
            group.create_task(run(position))


def tool_calls(
    calls: Sequence[ParsedCall],
    results: Sequence[ToolResult],
    num_tokens: Sequence[int],
    *,
    turn: int,
    trajectory: int,
) -> list[ToolCall]:
    """The record of a turn's calls; `num_tokens` are those their answers added."""
    return [
        ToolCall(
            name=call.name,
            arguments=call.arguments,
            result=result.text,
            outcome=result.outcome,
            duration_s=result.duration_s,
            num_tokens=added,
            reward=result.reward,
            turn=turn,
            trajectory=trajectory,
            started_s=result.started_s,
        )
        for call, result, added in zip(calls, results, num_tokens, strict=True)
    ]


def _message_call(call: ParsedCall, call_id: str) -> MessageToolCall:
    function = FunctionCall(name=call.name, arguments=_arguments(call.arguments))
    return MessageToolCall(id=call_id, type="function", function=function)


def _arguments(text: str) -> JsonValue:
    """An object where the model wrote JSON, else its own text."""
    try:
        arguments: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return arguments


def _call_id(turn_number: int, position: int) -> str:
    return f"c{turn_number:05d}{position:03d}"  # nine letters and digits, which some templates insist on
