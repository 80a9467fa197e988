"""The dialect of OpenAI's Responses: answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from agentrl.gateway.base import AnswerCall, Finish, TurnAnswer
from agentrl.gateway.dialects import openai
from agentrl.gateway.dialects.base import Failure, call_name
from agentrl.gateway.dialects.fields import JsonObject
from agentrl.gateway.dialects.json_text import event

Step = tuple[str, JsonObject]
"""Name and data of an event; the number of the event is added when the event is written."""


@dataclass(frozen=True, slots=True)
class ResponsesReply:
    """Writes the answer in the form that a request asks for.

    Attributes:
        with_turn_id: whether thoughts carry the turn's id as `encrypted_content`, which clients send back unchanged.
        text_inputs: names of tools whose input is a text.
        namespaces: tool name that the model sees -> (namespace of the tool, name in the namespace).
    """

    model: str
    with_turn_id: bool = False
    text_inputs: frozenset[str] = frozenset()
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def body(self, answer: TurnAnswer) -> JsonObject:
        """Return the JSON of an answer."""
        cut = answer.finish is Finish.LENGTH
        return {
            **self._head(answer.turn_id, "incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [*self._items(answer)],
            "usage": _usage(answer),
        }

    def events(self, answer: TurnAnswer) -> bytes:
        """Return an answer as server-sent events."""
        body = self.body(answer)
        steps = [*self._begin(answer.turn_id)]
        for index, item in enumerate(self._items(answer)):
            steps += _item_steps(index, item)
        return _written([*steps, (f"response.{body['status']}", {"response": body})])

    def failed(self, failure: Failure) -> bytes:
        """Return the events that end a stream with an error."""
        # Codex, a client, repeats a request after an error code that Codex does not know, such as `rollout_ended`
        code = "invalid_prompt" if failure.code in ("invalid_value", "rollout_ended") else failure.code
        response: JsonObject = {**self._head("failed", "failed"), "error": {"code": code, "message": failure.text}}
        return _written([*self._begin("failed"), ("response.failed", {"response": response})])

    def _begin(self, turn_id: str) -> Iterator[Step]:
        for name in ("created", "in_progress"):
            yield f"response.{name}", {"response": self._head(turn_id, "in_progress")}

    def _head(self, turn_id: str, status: str) -> JsonObject:
        return {
            "id": f"resp_{turn_id}",
            "object": "response",
            "created_at": int(time.time()),
            "status": status,
            "model": self.model,
            **_CONSTANT,
        }

    def _items(self, answer: TurnAnswer) -> Iterator[JsonObject]:
        if answer.thinking:
            yield {
                "type": "reasoning",
                "id": f"rs_{answer.turn_id}",
                "summary": [{"type": "summary_text", "text": answer.thinking}],
                "encrypted_content": answer.turn_id if self.with_turn_id else None,
                "status": "completed",
            }
        if answer.content or not answer.calls:
            part: JsonObject = {"type": "output_text", "text": answer.content, "annotations": [], "logprobs": []}
            yield {
                "type": "message",
                "id": f"msg_{answer.turn_id}",
                "role": "assistant",
                "content": [part],
                "status": "completed",
            }
        yield from map(self._call, answer.calls)

    def _call(self, call: AnswerCall) -> JsonObject:
        namespace, name = self.namespaces.get(call.name, ("", call_name(call)))
        known: JsonObject = {"call_id": call.call_id, "name": name, "status": "completed"}
        if namespace:
            known["namespace"] = namespace
        if call.name in self.text_inputs:
            return {
                "type": "custom_tool_call",
                "id": f"ctc_{call.call_id}",
                **known,
                "input": openai.text_input(call),
            }
        return {"type": "function_call", "id": f"fc_{call.call_id}", **known, "arguments": call.arguments}


def _item_steps(index: int, item: JsonObject) -> Iterator[Step]:
    where: JsonObject = {"item_id": item["id"], "output_index": index}
    empty = {**item, "status": "in_progress"}
    match item["type"]:
        case "reasoning":
            empty["summary"], inner = [], _part_steps(where, "reasoning_summary", item["summary"])
        case "message":
            empty["content"], inner = [], _part_steps(where, "output", item["content"])
        case "custom_tool_call":
            empty["input"], inner = "", _text_steps("custom_tool_call_input", where, "input", item["input"])
        case _:
            named = {**where, "name": item["name"]}
            inner = _text_steps("function_call_arguments", where, "arguments", item["arguments"], named)
            empty["arguments"] = ""
    yield "response.output_item.added", {"output_index": index, "item": empty}
    yield from inner
    yield "response.output_item.done", {"output_index": index, "item": item}


def _part_steps(where: JsonObject, kind: str, parts: JsonValue) -> Iterator[Step]:
    """Yield the events of an item of thoughts or text; `parts` has one part."""
    part: JsonObject = parts[0]  # type: ignore[index, assignment]  # made by `_items`
    summary = kind == "reasoning_summary"
    name, where = (
        (f"{kind}_part", {**where, "summary_index": 0})
        if summary
        else (
            "content_part",
            {**where, "content_index": 0},
        )
    )
    yield f"response.{name}.added", {**where, "part": {**part, "text": ""}}
    extra: JsonObject = {} if summary else {"logprobs": []}
    yield from _text_steps(f"{kind}_text", {**where, **extra}, "text", part["text"])
    yield f"response.{name}.done", {**where, "part": part}


def _text_steps(
    name: str, where: JsonObject, key: str, text: JsonValue, when_done: JsonObject | None = None
) -> Iterator[Step]:
    if text:
        yield f"response.{name}.delta", {**where, "delta": text}
    yield f"response.{name}.done", {**(when_done or where), key: text}


def _written(steps: list[Step]) -> bytes:
    return b"".join(
        event({"type": name, "sequence_number": number, **data}, name) for number, (name, data) in enumerate(steps)
    )


def _usage(answer: TurnAnswer) -> JsonObject:
    return {
        "input_tokens": answer.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.num_cached_tokens},
        "output_tokens": answer.num_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.num_prompt_tokens + answer.num_tokens,
    }


_CONSTANT: JsonObject = {
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "output": [],
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": False,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "usage": None,
    "user": None,
}
"""Keys that clients expect in a response; the values of these keys do not depend on the run."""
