"""The dialect of OpenAI's Chat Completions: requests."""

from __future__ import annotations

from pydantic import JsonValue

from agentrl.gateway.base import TurnRequest
from agentrl.gateway.dialects.base import Asked, Dialect
from agentrl.gateway.dialects.chat_reply import ChatReply
from agentrl.gateway.dialects.content import Images, Part, read_content, unknown_part
from agentrl.gateway.dialects.fields import Fields
from agentrl.gateway.dialects.json_text import KEEP_ALIVE
from agentrl.gateway.dialects.openai import arguments_of, as_arguments, error, past_call, role
from agentrl.gateway.dialects.tool_schemas import Tools
from agentrl.types.messages import Message, MessageToolCall

_ROLES = ("system", "developer", "user", "assistant", "tool")
_NO_EFFECT: dict[str, tuple[JsonValue, ...]] = {
    "temperature": (),
    "top_p": (),
    "top_k": (),
    "min_p": (),
    "seed": (),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto",),
    "parallel_tool_calls": (True,),
    "reasoning_effort": (),
    "verbosity": (),
    "prediction": (),
    "web_search_options": (),
    "chat_template_kwargs": ({},),
    "modalities": (["text"],),
}
_REFUSED = {
    "functions": "use `tools`",
    "function_call": "use `tools`",
    "logprobs": "log-probabilities are recorded by the run and not sent",
    "top_logprobs": "log-probabilities are recorded by the run and not sent",
    "audio": "the model answers with text",
}


def read(body: JsonValue) -> Asked:
    """Read a request.

    Raises:
        RequestError: the request is malformed, or has a key that is refused.
    """
    fields, images, tools = Fields.of(body), Images(), Tools()
    fields.refuse_if_set(_REFUSED)
    if (fields.count("n") or 1) > 1:
        raise fields.refusal("n", "a request gets one answer; send the request again for another one")
    strict = [key for each in fields.each("tools") if (key := _add_tool(tools, each))]
    messages = [_message(each, images) for each in fields.each("messages")]
    if not messages:
        raise fields.refusal("messages", "expected at least one message")
    request = TurnRequest(
        messages=messages,
        tools=tools.schemas,
        max_tokens=fields.count("max_completion_tokens") or fields.count("max_tokens"),
        stop=fields.texts("stop"),
        images=images.by_name,
        ignored=(*fields.with_effect(_NO_EFFECT), *strict, *tools.left_out),
    )
    reply = ChatReply(
        model=fields.optional_text("model"),
        with_usage=fields.fields("stream_options").flag("include_usage"),
        text_inputs=frozenset(tools.text_inputs),
    )
    return Asked(request, fields.flag("stream"), reply)


def _add_tool(tools: Tools, fields: Fields) -> str:
    """Add a tool. If the tool sets `strict`, which has no effect, return the full name of this key; else ""."""
    kind = fields.name("type")
    if kind == "custom":
        tools.add_text_input(fields.required_fields("custom"))
    elif kind != "function":
        tools.leave_out(fields)
    else:
        function = fields.required_fields("function")
        tools.add_function(function)
        return function.key("strict") if function.flag("strict") else ""
    return ""


def _message(fields: Fields, images: Images) -> Message:
    name = role(fields, _ROLES)
    if name == "assistant":
        return _assistant(fields, images)
    message = Message(role=name, content=read_content(fields, "content", lambda part: _part(part, images)))
    if name == "tool":
        message["tool_call_id"] = fields.name("tool_call_id")
        if tool := fields.optional_text("name"):
            message["name"] = tool
    return message


def _assistant(fields: Fields, images: Images) -> Message:
    fields.refuse_if_set({"function_call": "use `tool_calls`", "audio": "the model reads text"})
    content = fields.get("content")
    message = Message(role="assistant", content="")
    if content is not None:
        message["content"] = read_content(fields, "content", lambda part: _part(part, images))
    if thoughts := fields.optional_text("reasoning_content") or _other_thoughts(fields):
        message["reasoning_content"] = thoughts
    if calls := [_call(each) for each in fields.each("tool_calls")]:
        message["tool_calls"] = calls
    return message


def _other_thoughts(fields: Fields) -> str:
    """Return the thoughts under the key `reasoning`, which some servers use."""
    value = fields.get("reasoning")
    return value if isinstance(value, str) else ""


def _call(fields: Fields) -> MessageToolCall:
    if fields.get("type") == "custom":
        custom = fields.required_fields("custom")
        return past_call(fields.name("id"), custom.name("name"), as_arguments(custom.text("input")))
    if fields.get("type") not in (None, "function"):
        raise unknown_part(fields, "'function' or 'custom'")
    function = fields.required_fields("function")
    return past_call(fields.name("id"), function.text("name"), arguments_of(function))


def _part(fields: Fields, images: Images) -> Part:
    kind = fields.get("type")
    if kind == "text":
        return fields.text("text")
    if kind == "refusal":
        return fields.text("refusal")
    if kind == "image_url":
        return images.part(fields, "image_url", _url(fields))
    raise unknown_part(fields, "'text' or 'image_url'")


def _url(fields: Fields) -> str:
    value = fields.get("image_url")
    return value if isinstance(value, str) else fields.required_fields("image_url").text("url")


CHAT_COMPLETIONS = Dialect(read, error, KEEP_ALIVE)
