"""Functions that both dialects of OpenAI share: errors, history, and tools whose input is a text."""

from __future__ import annotations

from pydantic import JsonValue

from agentrl.gateway.base import AnswerCall
from agentrl.gateway.dialects.base import Failure
from agentrl.gateway.dialects.fields import Fields, JsonObject
from agentrl.gateway.dialects.json_text import arguments_object, dumped
from agentrl.types.messages import MessageToolCall

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def error(failure: Failure) -> JsonObject:
    """Return the JSON of an error."""
    kind = "server_error" if failure.status >= 500 else "invalid_request_error"
    return {"error": {"message": failure.text, "type": kind, "param": None, "code": failure.code}}


def role(fields: Fields, known: tuple[str, ...]) -> str:
    """Return the role of a message; `developer` becomes `system`."""
    name = fields.text("role")
    if name not in known:
        raise fields.refusal("role", f"expected one of {', '.join(known)}, got {name[:40]!r}")
    return ROLES[name]


def past_call(call_id: str, name: str, arguments: JsonValue) -> MessageToolCall:
    """Return a call of an earlier turn."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def arguments_of(fields: Fields) -> JsonValue:
    """Return the arguments of an earlier call, as the client sent them."""
    value = fields.get("arguments")
    if not isinstance(value, str | dict):
        raise fields.wrong_type("arguments", "JSON text")
    return value


def as_arguments(text: str) -> str:
    """Return the text input of an earlier call as the JSON arguments that the model had written."""
    return dumped({"input": text}).decode()


def text_input(call: AnswerCall) -> str:
    """Return the text input of a call to a tool whose input is a text.

    If the arguments have no text `input`, for example because the call is malformed, return them unchanged.
    """
    values = None if call.error else arguments_object(call.arguments)
    given = None if values is None else values.get("input")
    return given if isinstance(given, str) else call.arguments
