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
    "background": "background responses are not supported: an answer is sent only in reply to its request",
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
    strict = [key for each in fields.each("tools") for key in _add_tool(tools, each)]
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
        namespaces=tools.namespaces,
    )
    return Asked(request, fields.flag("stream"), reply)


def _without_effect(fields: Fields) -> Iterator[str]:
    yield from fields.with_effect(_NO_EFFECT)
    for name, inner in _NO_EFFECT_IN.items():
        yield from fields.fields(name).with_effect(inner)


def _add_tool(tools: Tools, fields: Fields, namespace: str = "") -> Iterator[str]:
    """Add a tool; yield the full names of its keys that have no effect."""
    kind = fields.name("type")
    if kind == "function":
        tools.add_function(fields, namespace=namespace)
        if fields.flag("strict"):
            yield fields.key("strict")
    elif kind == "custom" and not namespace:
        tools.add_text_input(fields)
    elif kind == "namespace" and not namespace:
        for each in fields.each("tools"):
            yield from _add_tool(tools, each, fields.name("name"))
    else:
        tools.leave_out(fields)


RESPONSES = Dialect(read, error, KEEP_ALIVE)
