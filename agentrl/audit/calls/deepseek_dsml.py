"""Parser of the format of DeepSeek-V3.2 and V4."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentrl.audit.calls.json_values import after_blanks, finite_object, only_json
from agentrl.audit.calls.parsed import Call, ParsedTurn, storable
from agentrl.audit.calls.thoughts import first_thoughts
from agentrl.audit.calls.typed_text import Types
from agentrl.audit.reading.run_info import Json

_OPEN, _CLOSE = '<｜DSML｜invoke name="', "</｜DSML｜invoke>"
_SECTION = re.compile(r"<｜DSML｜(?:function_calls|tool_calls)>\s*")
_SECTION_END = re.compile(r"</｜DSML｜(?:function_calls|tool_calls)>\s*")
_NAME = re.compile(r'([^"<>\s]{1,200})"\s*>\s*')
_KEY = re.compile(r'<｜DSML｜parameter name="([^"<>\n]{1,200})"(?: string="(true|false)")?\s*>')
_VALUE_END = re.compile(r"</｜DSML｜parameter>\s*(?=<｜DSML｜parameter |</｜DSML｜invoke>)")


def read_deepseek_dsml(text: str, tools: Sequence[Json]) -> ParsedTurn:
    """Parse calls with a tag for each argument; an attribute of the tag may mark the value as text or JSON."""
    answer, thoughts = first_thoughts(text, _OPEN)
    before, *blocks = answer.split(_OPEN)
    section = _SECTION.search(before)
    if section and not blocks:
        return ParsedTurn(
            before[: section.start()].strip(), (Call("", None, before[section.end() :].strip()),), thoughts
        )
    contents = [_SECTION.sub("", before, count=1)]
    types, calls = Types(tools), list[Call]()
    for block in blocks:
        call, end = _call(block, types)
        calls.append(call)
        contents.append(_after_call(block, end))
    return ParsedTurn("".join(contents).strip(), tuple(calls), thoughts)


def _after_call(block: str, position: int) -> str:
    position = after_blanks(block, position)
    for mark in (_SECTION_END, _SECTION):
        found = mark.match(block, position)
        position = found.end() if found else position
    return block[position:]


def _call(block: str, types: Types) -> tuple[Call, int]:
    """Return the call of a block, and the position of the call's end."""
    head = _NAME.match(block)
    name = head[1] if head and storable(head[1]) else ""
    arguments, position = _arguments(block, name, head.end(), types) if head else (None, 0)
    found = finite_object(arguments) if name else None
    if found is not None and block.startswith(_CLOSE, position):
        return Call(name, found), position + len(_CLOSE)
    body, close, _ = block.partition(_CLOSE)
    return Call(name, None, body.strip()), len(body) + len(close)


def _arguments(block: str, name: str, position: int, types: Types) -> tuple[dict[str, Json] | None, int]:
    """Return the arguments, and the position at which they end.

    The arguments are None if one of them is written twice, or is marked as JSON but is not JSON.
    """
    arguments = dict[str, Json]()
    while (key := _KEY.match(block, position)) and (end := _VALUE_END.search(block, key.end())):
        argument, text = key[1].strip(), block[key.end() : end.start()]
        value, found = only_json(text) if key[2] == "false" else (text, True)
        if argument in arguments or not found:
            return None, position
        arguments[argument] = value if key[2] else types.value(name, argument, text)
        position = end.end()
    return arguments, position
