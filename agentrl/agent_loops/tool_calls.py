"""Runs tool calls concurrently, and converts them to messages and to records."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from pydantic import JsonValue

from agentrl.chat.base import ParsedCall, ParsedTurn, ToolParser
from agentrl.errors import ConfigError, DataError, TemplateError
from agentrl.tools.base import InfraError
from agentrl.tools.result import ToolResult
from agentrl.tools.toolbox import ToolSession
from agentrl.types.messages import FunctionCall, Message, MessageToolCall, image_part, message_text
from agentrl.types.rollout import Outcome, ToolCall

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat


async def parse(parser: ToolParser, text: str) -> ParsedTurn:
    """Parse a turn, in a thread if the parser may take seconds."""
    return await asyncio.to_thread(parser.parse, text) if getattr(parser, "off_loop", False) else parser.parse(text)


def assistant_message(turn: ParsedTurn, turn_number: int) -> Message:
    """Return a model turn as a message."""
    message = Message(role="assistant", content=turn.content)
    if turn.thinking:
        message["reasoning_content"] = turn.thinking
    if turn.calls:
        ids = _call_ids(turn.calls, turn_number)
        message["tool_calls"] = [_message_call(*pair) for pair in zip(turn.calls, ids, strict=True)]
    return message


def tool_messages(calls: Sequence[ParsedCall], texts: Sequence[str], turn_number: int) -> list[Message]:
    """Return the answers to a turn's calls as messages, in call order."""
    return [
        Message(role="tool", name=call.name, tool_call_id=call_id, content=text)
        for call, text, call_id in zip(calls, texts, _call_ids(calls, turn_number), strict=True)
    ]


def with_images(messages: Sequence[Message], images: Sequence[Sequence[str]]) -> list[Message]:
    """Add each answer's image names to its message, before the text. One message with all answers gets all names.

    Args:
        images: image names of each answer.
    """
    if not any(images):
        return list(messages)
    shown = images if len(images) == len(messages) else [*[()] * (len(messages) - 1), list(chain(*images))]
    return [_with_parts(message, names) for message, names in zip(messages, shown, strict=True)]


def as_shown(call: ParsedCall, result: ToolResult, chat: ChatFormat) -> ToolResult:
    """Return the answer that the model sees: an error if the model's processor rejects an image of the answer.

    If the model does not accept images, optional images become notes in the text.

    Raises:
        ConfigError: the answer has an image that is not optional, and the model does not accept images.
    """
    try:
        for data in result.images:
            chat.check_image(data)
    except DataError as error:
        if result.optional_images:
            return replace(result, text=_without_images(result), images=())
        raise ConfigError.keyless(f"tool '{call.name}' answered with an image: {error}") from error
    except TemplateError as error:
        why = f"Error: the tool returned an image that cannot be used: {error}"
        return replace(result, text=why, outcome=Outcome.TOOL_ERROR, images=())
    return result


def _without_images(result: ToolResult) -> str:
    notes = [f"[image, {len(data)} bytes]" for data in result.images]
    return "\n".join(filter(None, [result.text, *notes]))


def _with_parts(message: Message, names: Sequence[str]) -> Message:
    text = message_text(message)
    parts: list[JsonValue] = [{"type": "text", "text": text}] if text else []
    changed = message.copy()
    changed["content"] = [*map(image_part, names), *parts] if names else message.get("content")
    return changed


def refused(why: str) -> ToolResult:
    """Return the answer to a call that was not run because of a limit."""
    return ToolResult(text=f"Error: {why}.", outcome=Outcome.LIMIT_ERROR)


def aborted() -> ToolResult:
    """Return the result of a call that was interrupted by the end of the rollout."""
    return ToolResult(text="Error: the rollout ended before this call finished.", outcome=Outcome.ABORTED)


async def run_calls(tools: ToolSession, calls: Sequence[ParsedCall], results: list[ToolResult]) -> None:
    """Run `calls` concurrently. Each call sets its entry of `results`, so finished results survive a cancellation."""

    async def run(position: int) -> None:
        results[position] = await tools.call(calls[position])

    if len(calls) == 1:  # the common case needs no asyncio task
        await run(0)
        return
    async with asyncio.TaskGroup() as group:
        for position in range(len(calls)):
            group.create_task(run(position))


def raise_failures(calls: Sequence[ParsedCall], results: Sequence[ToolResult]) -> None:
    """Raise InfraError if a call failed for reasons outside the policy."""
    for call, result in zip(calls, results, strict=True):
        if result.outcome is Outcome.INFRA_ERROR:
            raise InfraError(f"tool '{call.name}': {result.text}")


def tokens_of_answers(
    messages: Sequence[Message], num_calls: int, num_added: int, length: Callable[[Sequence[Message]], int]
) -> list[int]:
    """Return the number of tokens that each answer added.

    Tokens that the template adds before and after all answers are counted with the first or last answer.

    Args:
        messages: the answers: one message for each call, or one message for all calls.
        num_added: number of tokens that were appended.
        length: function that returns the number of tokens of the messages passed to it.
    """
    if len(messages) < num_calls or num_calls == 1 or not num_added:
        return [num_added] + [0] * (num_calls - 1)
    upto = [length(messages[:count]) for count in range(1, num_calls)] + [num_added]
    return [upto[0], *(after - before for before, after in pairwise(upto))]


def tool_calls(
    calls: Sequence[ParsedCall],
    results: Sequence[ToolResult],
    num_tokens: Sequence[int],
    *,
    turn: int,
    trajectory: int,
) -> list[ToolCall]:
    """Return the records of a turn's calls; `num_tokens` are the numbers of tokens that the answers added."""
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
    """Parse the arguments as JSON; return the text itself if it is not valid JSON."""
    try:
        arguments: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return arguments


def _call_ids(calls: Sequence[ParsedCall], turn_number: int) -> list[str]:
    """Return an id for each call of a turn: the id that the model wrote if it is unique in the turn, else a new id."""
    written = Counter(call.call_id for call in calls if call.call_id)
    return [
        call.call_id if written[call.call_id] == 1 else _new_id(turn_number, position)
        for position, call in enumerate(calls)
    ]


def _new_id(turn_number: int, position: int) -> str:
    return f"c{turn_number:05d}{position:03d}"  # some chat templates require ids of nine letters or digits
