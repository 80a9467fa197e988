"""Parser of the format of GLM-4.5 and later."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentrl.audit.calls.json_values import finite_object
from agentrl.audit.calls.parsed import Call, ParsedTurn, storable
from agentrl.audit.calls.thoughts import first_thoughts
from agentrl.audit.calls.typed_text import Types
from agentrl.audit.reading.run_info import Json

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_NEXT = r"\s*(?=<arg_key>|</tool_call>)"
_NAME = re.compile(rf"\s*([^\s<>{{}}]{{1,200}}){_NEXT}")
_KEY = re.compile(r"<arg_key>([^<>\n]{1,200})</arg_key>\s*<arg_value>")
_VALUE_END = re.compile(f"</arg_value>{_NEXT}")


def read_glm(text: str, tools: Sequence[Json]) -> ParsedTurn:
    """Parse a name and pairs of `<arg_key>` and `<arg_value>` after each `<tool_call>`."""
    answer, thoughts = first_thoughts(text, _OPEN)
    content, *blocks = answer.split(_OPEN)
    types, calls = Types(tools), list[Call]()
    for block in blocks:
        call, end = _call(block, types)
        calls.append(call)
        content += block[end:]
    return ParsedTurn(content.strip(), tuple(calls), thoughts)


def _call(block: str, types: Types) -> tuple[Call, int]:
    """Return the call of a block, and the position of the call's end."""
    head = _NAME.match(block)
    name = head[1] if head else ""
    arguments, position = _arguments(block, name, head.end(), types) if head else ({}, 0)
    found = finite_object(arguments) if name and storable(name) else None
    if found is not None and block.startswith(_CLOSE, position):
        return Call(name, found), position + len(_CLOSE)
    body, close, _ = block.partition(_CLOSE)
    return Call(name if storable(name) else "", None, body.strip()), len(body) + len(close)


def _arguments(block: str, name: str, position: int, types: Types) -> tuple[dict[str, Json] | None, int]:
    """Return the arguments, and the position at which they end. If one is written twice, the arguments are None."""
    arguments = dict[str, Json]()
    while (key := _KEY.match(block, position)) and (end := _VALUE_END.search(block, key.end())):
        argument = key[1].strip()
        if argument in arguments:
            return None, position
        arguments[argument] = types.value(name, argument, block[key.end() : end.start()])
        position = end.end()
    return arguments, position
