"""The dialect of OpenAI's Responses: requests."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from agentrl.gateway.base import TurnRequest
from agentrl.gateway.dialects.base import Asked, Dialect
from agentrl.gateway.dialects.fields import Fields
from agentrl.gateway.dialects.json_text import KEEP_ALIVE
from agentrl.gateway.dialects.openai import error
from agentrl.gateway.dialects.responses_items import Items
from agentrl.gateway.dialects.responses_reply import ResponsesReply
from agentrl.gateway.dialects.tool_schemas import Tools

_NO_EFFECT: dict[str, tuple[JsonValue, ...]] = {
    "temperature": (),
    "top_p": (),
    "seed": (),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "tool_choice": ("auto",),
    "parallel_tool_calls": (True,),
    "max_tool_calls": (),
    "truncation": ("disabled",),
    "service_tier": ("auto", "default"),
    "context_management": ([],),
}
_NO_EFFECT_IN: dict[str, dict[str, tuple[JsonValue, ...]]] = {
    "text": {"format": ({"type": "text"},), "verbosity": ()},
    "reasoning": {"effort": ()},
}
_STATELESS = "the gateway stores no responses: send the conversation in `input`"
_REFUSED = {
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "prompt": "prompts that a service stores are not known: send the conversation in `input`",
    "background": "an answer is sent only to the request that asks for it",
    "top_logprobs": "log-probabilities are recorded by the run and not sent",
}
_ENCRYPTED_THOUGHTS = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"


def read(body: JsonValue) -> Asked:
    """Read a request.

    Raises:
        RequestError: the request is malformed, or has a key that is refused.
    """
    fields, tools, items = Fields.of(body), Tools(), Items()
    fields.refuse_if_set(_REFUSED)
    include = fields.texts("include")
    if _LOGPROBS in include:
        raise fields.refusal("include", f"{_LOGPROBS}: {_REFUSED['top_logprobs']}")
    strict = [key for each in fields.each("tools") if (key := _add_tool(tools, each))]
    items.read(fields)
    request = TurnRequest(
        messages=items.messages,
        tools=tools.schemas,
        max_tokens=fields.count("max_output_tokens"),
        images=items.images.by_name,
        ignored=(*_without_effect(fields), *strict, *tools.left_out),
    )
    reply = ResponsesReply(
        model=fields.optional_text("model"),
        with_turn_id=_ENCRYPTED_THOUGHTS in include,
        text_inputs=frozenset(tools.text_inputs),
    )
    return Asked(request, fields.flag("stream"), reply)


def _without_effect(fields: Fields) -> Iterator[str]:
    yield from fields.with_effect(_NO_EFFECT)
    for name, inner in _NO_EFFECT_IN.items():
        yield from fields.fields(name).with_effect(inner)


def _add_tool(tools: Tools, fields: Fields) -> str:
    """Add a tool; return the key that has no effect, if any."""
    kind = fields.name("type")
    if kind == "custom":
        tools.add_text_input(fields)
    elif kind != "function":
        tools.leave_out(fields)
    else:
        tools.add_function(fields)
        return fields.key("strict") if fields.flag("strict") else ""
    return ""


RESPONSES = Dialect(read, error, KEEP_ALIVE)
