"""Check that a tool parser can read the calls that a chat template writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import JsonValue

from agentrl.chat.base import ToolParser, parser_for
from agentrl.chat.parsers.names import tool_parsers
from agentrl.chat.probes import calling_turn
from agentrl.errors import ConfigError, Kind, TemplateError
from agentrl.types.messages import FunctionSchema, ToolSchema

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat

ARGUMENTS: dict[str, JsonValue] = {"text": 'say "hi" {to} <them>\n', "count": 2, "options": {"deep": [True, None]}}
TYPES: dict[str, JsonValue] = {"text": {"type": "string"}, "count": {"type": "integer"}, "options": {"type": "object"}}


def check_parser(parser_name: str, chat: ChatFormat, schemas: Sequence[ToolSchema]) -> None:
    """Refuse a parser that cannot read a call written by the chat template.

    Args:
        schemas: the tools passed to the template. Without tools, the template defines no format, so every parser fits
            (an agent may explain its tools in the prompt).

    Raises:
        ConfigError: the parser cannot read the call; the text suggests a registered parser that can.
        UnknownNameError: no parser has that name.
    """
    parser = tool_parsers.get(parser_name)()
    if not schemas:
        return
    written = _written_call(chat, schemas)
    if written is None:
        if getattr(parser, "taught_by_prompt", False):
            return
        raise ConfigError.at(
            "rollout.multi_turn.format",
            Kind.CONFLICT,
            f"tool parser '{parser_name}' does not fit the chat template, which writes no tool calls: "
            "use a template that does, or 'react'",
        )
    if _reads(parser, written, schemas[0].name):
        return
    others = [name for name in tool_parsers.names() if _reads(tool_parsers.get(name)(), written, schemas[0].name)]
    none_does = (
        f"no registered parser does ({', '.join(tool_parsers.names())}); SGLang's parsers are called sglang/NAME"
    )
    hint = f"use '{others[0]}'" if others else none_does
    raise ConfigError.at(
        "rollout.multi_turn.format",
        Kind.CONFLICT,
        f"tool parser '{parser_name}' does not read the chat template's calls, {written!r}: {hint}",
    )


def _written_call(chat: ChatFormat, schemas: Sequence[ToolSchema]) -> str | None:
    """Text of a turn that calls the first tool; None if the template writes no calls."""
    name = schemas[0].name
    try:
        _, text = chat.template.turn(calling_turn(name, arguments=ARGUMENTS), schemas)
    except TemplateError:  # the template does not support tool calls
        return None
    return chat.template.without_end(text) if name in text else None


def _reads(parser: ToolParser, text: str, name: str) -> bool:
    parameters: dict[str, JsonValue] = {"type": "object", "properties": TYPES}
    probe = ToolSchema(function=FunctionSchema(name=name, parameters=parameters))
    calls = parser_for(parser, [probe]).parse(text).calls
    well_formed = [call.name for call in calls] == [name] and not calls[0].error
    return well_formed and json.loads(calls[0].arguments) == ARGUMENTS
