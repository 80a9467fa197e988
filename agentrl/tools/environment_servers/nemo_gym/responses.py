"""Converts a rollout to a response of the Responses API, which `/verify` of a resources server reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from pydantic import JsonValue

from agentrl.types.messages import Message, ToolSchema, message_text
from agentrl.types.task import Task

Item = dict[str, JsonValue]
PARAMS = "responses_create_params"
"""Column of NeMo-Gym's rows: the request, with `input` and `tools`."""


def request_params(task: Task, tools: Sequence[ToolSchema]) -> JsonValue:
    """Return the request in the row's column `PARAMS`; without this column, a request with the prompt and the tools."""
    if (given := task.extra_info.get(PARAMS)) is not None:
        return given
    asked: list[JsonValue] = [{"role": each["role"], "content": message_text(each)} for each in task.messages]
    return {"input": asked, "tools": [_tool(schema) for schema in tools]}


def response_object(task: Task, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Item:
    """Return the response, which contains everything that the rollout added to the row's prompt.

    Args:
        messages: the conversation, which begins with the prompt.
    """
    added = messages[0]["role"] == "system" != task.messages[0]["role"] if messages else False
    items = [*chain.from_iterable(_Items().of(message) for message in [*messages][len(task.messages) + added :])]
    return {
        "id": "resp_0",
        "object": "response",
        "created_at": 0,
        "model": "policy",
        "output": _numbered(items),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [_tool(schema) for schema in tools],
    }


def _tool(schema: ToolSchema) -> Item:
    function = schema.function
    return {
        "type": "function",
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
        "strict": True,
    }


def _numbered(items: Sequence[Item]) -> list[JsonValue]:
    """Add ids. The answers in a turn belong to the calls of the turn, in the same order."""
    calls: list[str] = []
    numbered: list[JsonValue] = []
    for number, item in enumerate(items):
        if item["type"] == "function_call":
            calls.append(f"call_{number}")
            item = {**item, "call_id": calls[-1]}
        if item["type"] == "function_call_output":
            item = {**item, "call_id": calls.pop(0) if calls else f"call_{number}"}
        numbered.append({**item, "id": f"item_{number}"})
    return numbered


class _Items:
    """Converts a message to items without ids."""

    def of(self, message: Message) -> Iterator[Item]:
        if message["role"] == "assistant":
            yield from self._assistant(message)
        elif message["role"] == "tool":
            yield {"type": "function_call_output", "output": message_text(message)}
        else:
            yield {"type": "message", "role": message["role"], "content": message_text(message)}

    def _assistant(self, message: Message) -> Iterator[Item]:
        calls, text = message.get("tool_calls", ()), message_text(message)
        if thoughts := message.get("reasoning_content"):
            yield {"type": "reasoning", "summary": [{"type": "summary_text", "text": thoughts}]}
        if text or not calls:
            content: list[JsonValue] = [{"type": "output_text", "text": text, "annotations": []}]
            yield {"type": "message", "role": "assistant", "status": "completed", "content": content}
        for call in calls:
            yield {"type": "function_call", "status": "completed", **_called(call["function"])}


def _called(function: Mapping[str, object]) -> Item:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"name": str(function["name"]), "arguments": text}
