"""The dialect of Anthropic's Messages: requests."""

from __future__ import annotations

from pydantic import JsonValue

from agentrl.gateway.base import TurnRequest
from agentrl.gateway.dialects.base import Asked, Dialect
from agentrl.gateway.dialects.fields import Fields
from agentrl.gateway.dialects.messages_blocks import Blocks
from agentrl.gateway.dialects.messages_reply import PING, MessagesReply, error
from agentrl.gateway.dialects.tool_schemas import Tools

_NO_EFFECT: dict[str, tuple[JsonValue, ...]] = {
    "temperature": (),
    "top_p": (),
    "top_k": (),
    "thinking": (),
    "output_config": ({},),
    "output_format": (),
    "context_management": ({}, {"edits": []}),
    "tool_choice": ({"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": False}),
    "service_tier": ("auto",),
    "speed": ("standard",),
}
_REFUSED = {
    "mcp_servers": "the gateway calls no MCP servers",
    "container": "the gateway runs no containers",
}


def read(body: JsonValue) -> Asked:
    """Read a request.

    Raises:
        RequestError: the request is malformed, or has a key that is refused.
    """
    fields, tools, blocks = Fields.of(body), Tools(), Blocks()
    fields.refuse_if_set(_REFUSED)
    strict = [key for each in fields.each("tools") if (key := _add_tool(tools, each))]
    blocks.read(fields)
    request = TurnRequest(
        messages=blocks.messages,
        tools=tools.schemas,
        max_tokens=fields.count("max_tokens"),
        stop=fields.texts("stop_sequences"),
        images=blocks.images.by_name,
        ignored=(*fields.with_effect(_NO_EFFECT), *strict, *tools.left_out),
    )
    thinking = fields.fields("thinking").optional_text("type")
    reply = MessagesReply(model=fields.optional_text("model"), with_thinking=thinking not in ("", "disabled"))
    return Asked(request, fields.flag("stream"), reply)


def _add_tool(tools: Tools, fields: Fields) -> str:
    """Add a tool. If the tool sets `strict`, which has no effect, return the full name of this key; else ""."""
    if fields.optional_text("type") not in ("", "custom"):
        tools.leave_out(fields)
        return ""
    tools.add_function(fields, "input_schema")
    return fields.key("strict") if fields.flag("strict") else ""


MESSAGES = Dialect(read, error, PING)
