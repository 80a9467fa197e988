"""The dialect of OpenAI's Chat Completions: answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from agentrl.gateway.base import AnswerCall, Finish, TurnAnswer
from agentrl.gateway.dialects import openai
from agentrl.gateway.dialects.base import Failure, call_name
from agentrl.gateway.dialects.fields import JsonObject
from agentrl.gateway.dialects.json_text import event

_FINISH = {Finish.STOP: "stop", Finish.CALLS: "tool_calls", Finish.LENGTH: "length"}
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ChatReply:
    """Writes the answer in the form that a request asks for.

    Attributes:
        with_usage: whether a stream ends with the token counts (`usage`).
        text_inputs: names of tools whose input is a text.
    """

    model: str
    with_usage: bool = False
    text_inputs: frozenset[str] = frozenset()

    def body(self, answer: TurnAnswer) -> JsonObject:
        """Return the JSON of an answer."""
        message: JsonObject = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.thinking:
            message["reasoning_content"] = answer.thinking
        if answer.calls:
            message["content"] = answer.content or None
            message["tool_calls"] = [self._call(call) for call in answer.calls]
        choice: JsonObject = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _FINISH[answer.finish],
        }
        return {**self._head(answer, "chat.completion"), "choices": [choice], "usage": _usage(answer)}

    def events(self, answer: TurnAnswer) -> bytes:
        """Return an answer as server-sent events."""
        head = self._head(answer, "chat.completion.chunk")
        if self.with_usage:
            head["usage"] = None
        chunks = [event({**head, "choices": [choice]}) for choice in self._choices(answer)]
        if self.with_usage:
            chunks.append(event({**head, "choices": [], "usage": _usage(answer)}))
        return b"".join((*chunks, _DONE))

    def failed(self, failure: Failure) -> bytes:
        """Return the event that ends a stream with an error."""
        return event(openai.error(failure))

    def _head(self, answer: TurnAnswer, kind: str) -> JsonObject:
        return {
            "id": f"chatcmpl-{answer.turn_id}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
        }

    def _choices(self, answer: TurnAnswer) -> Iterator[JsonObject]:
        deltas: list[JsonObject] = [{"role": "assistant", "content": ""}]
        if answer.thinking:
            deltas.append({"reasoning_content": answer.thinking})
        if answer.content:
            deltas.append({"content": answer.content})
        deltas += [{"tool_calls": [{"index": at, **self._call(call)}]} for at, call in enumerate(answer.calls)]
        for delta in deltas:
            yield {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        yield {"index": 0, "delta": {}, "logprobs": None, "finish_reason": _FINISH[answer.finish]}

    def _call(self, call: AnswerCall) -> JsonObject:
        name = call_name(call)
        if name in self.text_inputs:
            custom: JsonObject = {"name": name, "input": openai.text_input(call)}
            return {"id": call.call_id, "type": "custom", "custom": custom}
        return {"id": call.call_id, "type": "function", "function": {"name": name, "arguments": call.arguments}}


def _usage(answer: TurnAnswer) -> JsonObject:
    return {
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": answer.num_tokens,
        "total_tokens": answer.num_prompt_tokens + answer.num_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.num_cached_tokens},
    }
