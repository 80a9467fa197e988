"""Check that a tool parser can read the calls that a chat template writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from pydantic import JsonValue

from agentrl.chat.base import ParsedTurn, TokenizerReader, ToolParser, parser_for
from agentrl.chat.parsers.names import tool_parsers
from agentrl.chat.probes import USER
from agentrl.errors import ConfigError, Kind, TemplateError
from agentrl.types.messages import FunctionCall, FunctionSchema, Message, MessageToolCall, ToolSchema

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat

Arguments = Mapping[str, JsonValue]
Calls = Sequence[tuple[str, Arguments]]

KEY = "rollout.multi_turn.format"
ARGUMENTS: Arguments = {"text": 'say "hi" {to} <them>\n', "count": 2, "options": {"deep": [True, None]}}
TYPES: dict[str, JsonValue] = {"text": {"type": "string"}, "count": {"type": "integer"}, "options": {"type": "object"}}
CALL_IDS = ("zqCALL{number}qz", "functions.{name}:{number}")
"""Ids of calls, tried in this order. The first has nine letters and digits, because some templates require this. The
second contains the tool's name, because the template of Kimi K2 writes only the id of a call, not the name."""


def check_parser(parser_name: str, chat: ChatFormat, schemas: Sequence[ToolSchema]) -> None:
    """Refuse a parser that cannot read a call written by the chat template.

    Args:
        schemas: the tools passed to the template. Without tools, the template defines no format, so every parser fits
            (an agent may explain its tools in the prompt).

    Raises:
        ConfigError: the parser cannot be used with the tokenizer, the template writes no tool calls, or the parser
            cannot read the call. In the last case, the message suggests a registered parser that can, if there is one.
        UnknownNameError: no parser has that name.
    """
    parser = make_parser(parser_name, chat)
    if not schemas:
        return
    calls: Calls = [(schemas[0].name, ARGUMENTS)]
    written = written_turn(chat, schemas, calls)
    if written is None:
        if getattr(parser, "taught_by_prompt", False):
            return
        raise ConfigError.at(
            KEY,
            Kind.CONFLICT,
            f"tool parser '{parser_name}' does not fit the chat template, which writes no tool calls: "
            "use a template that does, or 'react'",
        )
    if reads(parser, written, calls) is not None:
        return
    others = [name for name in tool_parsers.names() if reads(tool_parsers.get(name)(), written, calls) is not None]
    none_does = (
        f"no registered parser does ({', '.join(tool_parsers.names())}); SGLang's parsers are called sglang/NAME"
    )
    hint = f"use '{others[0]}'" if others else none_does
    raise ConfigError.at(
        KEY, Kind.CONFLICT, f"tool parser '{parser_name}' does not read the chat template's calls, {written!r}: {hint}"
    )


def make_parser(name: str, chat: ChatFormat) -> ToolParser:
    """Make the parser `name`, bound to the model's tokenizer if the parser needs one.

    Raises:
        ConfigError: the parser cannot be used with this tokenizer.
        UnknownNameError: no parser has that name.
    """
    parser = tool_parsers.get(name)()
    return parser.for_tokenizer(chat.tokenizer) if isinstance(parser, TokenizerReader) else parser


def probe_tool(name: str) -> ToolSchema:
    """Return a tool with the arguments `TYPES`."""
    parameters: dict[str, JsonValue] = {"type": "object", "properties": TYPES}
    return ToolSchema(function=FunctionSchema(name=name, description=f"Does {name}.", parameters=parameters))


def written_turn(chat: ChatFormat, schemas: Sequence[ToolSchema], calls: Calls, content: str = "") -> str | None:
    """Return the template's text of a model turn, as a parser receives it.

    Return None if the template refuses the calls, does not write the name of a call, or does not begin the turn with
    the generation prompt.
    """
    # The template of DeepSeek-R1's distilled models writes calls only if the content is None.
    contents = (content,) if content else (content, None)
    messages = (_message(calls, given, call_id) for given, call_id in product(contents, CALL_IDS))
    written = (_written(chat, schemas, message) for message in messages)
    return next((text for text in written if text is not None), None)


def _written(chat: ChatFormat, schemas: Sequence[ToolSchema], message: Message) -> str | None:
    try:
        head = chat.template.render([USER], schemas, prompt=True).removesuffix(chat.opened)
        whole = chat.template.render([USER, message], schemas, prompt=False)
    except TemplateError:  # the template does not support these calls
        return None
    text = whole.removeprefix(head)
    names = [call["function"]["name"] for call in message.get("tool_calls", ())]
    if not whole.startswith(head) or any(name not in text for name in names):
        return None
    try:
        last = max((text.rfind(token) for token in chat.template.stop_tokens), default=-1)
    except TemplateError:  # no token ends a turn
        return text
    return text if last < 0 else text[:last]


def reads(parser: ToolParser, text: str, calls: Calls) -> ParsedTurn | None:
    """Return the parsed turn if the parser reads exactly these calls; else None."""
    turn = parser_for(parser, [probe_tool(name) for name, _ in calls]).parse(text)
    if [(call.name, call.error) for call in turn.calls] != [(name, None) for name, _ in calls]:
        return None
    same = [json.loads(call.arguments) for call in turn.calls] == [arguments for _, arguments in calls]
    return turn if same else None


def _message(calls: Calls, content: str | None, call_id: str) -> Message:
    message = Message(role="assistant", content=content)
    if calls:
        message["tool_calls"] = [
            MessageToolCall(
                id=call_id.format(name=name, number=number),
                type="function",
                function=FunctionCall(name=name, arguments=dict(arguments)),
            )
            for number, (name, arguments) in enumerate(calls)
        ]
    return message
