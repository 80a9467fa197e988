"""The dialect of Anthropic's Messages: answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from agentrl.gateway.base import AnswerCall, Finish, TurnAnswer
from agentrl.gateway.dialects.base import Failure, call_name
from agentrl.gateway.dialects.fields import JsonObject
from agentrl.gateway.dialects.json_text import arguments_object, dumped, event

PING = event({"type": "ping"}, "ping")

_FINISH = {Finish.STOP: "end_turn", Finish.CALLS: "tool_use", Finish.LENGTH: "max_tokens"}
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}
_TOO_LONG = "prompt is too long: "
"""Text by which clients recognise that the context is too long."""


def error(failure: Failure) -> JsonObject:
    """Return the JSON of an error."""
    text = f"{_TOO_LONG}{failure.text}" if failure.code == "context_length_exceeded" else failure.text
    kind = _ERRORS.get(failure.status, "api_error" if failure.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": text}}


@dataclass(frozen=True, slots=True)
class MessagesReply:
    """Writes the answer in the form that a request asks for.

    Attributes:
        with_thinking: whether the client asked for thoughts.
    """

    model: str
    with_thinking: bool = False

    def body(self, answer: TurnAnswer) -> JsonObject:
        """Return the JSON of an answer."""
        return {
            **self._head(answer),
            "content": [*self._blocks(answer)],
            "stop_reason": _FINISH[answer.finish],
            "usage": _usage(answer, answer.num_tokens),
        }

    def events(self, answer: TurnAnswer) -> bytes:
        """Return an answer as server-sent events."""
        start = {**self._head(answer), "content": [], "stop_reason": None, "usage": _usage(answer, 0)}
        sent = [event({"type": "message_start", "message": start}, "message_start")]
        for index, block in enumerate(self._blocks(answer)):
            sent += [event({"type": name, "index": index, **data}, name) for name, data in _block_steps(block)]
        delta: JsonObject = {"stop_reason": _FINISH[answer.finish], "stop_sequence": None}
        usage = _usage(answer, answer.num_tokens)
        sent.append(event({"type": "message_delta", "delta": delta, "usage": usage}, "message_delta"))
        sent.append(event({"type": "message_stop"}, "message_stop"))
        return b"".join(sent)

    def failed(self, failure: Failure) -> bytes:
        """Return the event that ends a stream with an error."""
        return event(error(failure), "error")

    def _head(self, answer: TurnAnswer) -> JsonObject:
        return {
            "id": f"msg_{answer.turn_id}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "stop_sequence": None,
        }

    def _blocks(self, answer: TurnAnswer) -> Iterator[JsonObject]:
        thoughts = answer.thinking if self.with_thinking else ""
        if thoughts:
            yield {"type": "thinking", "thinking": thoughts, "signature": answer.turn_id}
        if answer.content or not answer.calls:
            yield {"type": "text", "text": answer.content}
        for call in answer.calls:
            yield {"type": "tool_use", "id": call.call_id, "name": call_name(call), "input": arguments(call)}


def arguments(call: AnswerCall) -> JsonObject:
    """Return the arguments of a call; the text of a malformed call is in the key `malformed`."""
    values = None if call.error else arguments_object(call.arguments)
    return {"malformed": call.arguments} if values is None else values


def _block_steps(block: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    match block["type"]:
        case "thinking":
            empty: JsonObject = {"thinking": "", "signature": ""}
            deltas = [_delta("thinking", block["thinking"]), _delta("signature", block["signature"])]
        case "text":
            empty, deltas = {"text": ""}, [_delta("text", block["text"])]
        case _:
            empty = {"input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": dumped(block["input"]).decode()}]
    yield "content_block_start", {"content_block": {**block, **empty}}
    for delta in deltas:
        yield "content_block_delta", {"delta": delta}
    yield "content_block_stop", {}


def _delta(key: str, text: JsonValue) -> JsonObject:
    return {"type": f"{key}_delta", key: text}


def _usage(answer: TurnAnswer, num_tokens: int) -> JsonObject:
    return {
        "input_tokens": answer.num_prompt_tokens - answer.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.num_cached_tokens,
        "output_tokens": num_tokens,
    }
