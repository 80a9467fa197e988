"""Parser of the XML format of Qwen3-Coder."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentrl.audit.calls.json_values import after_blanks, finite_object
from agentrl.audit.calls.parsed import Call, ParsedTurn, storable
from agentrl.audit.calls.thoughts import first_thoughts
from agentrl.audit.calls.typed_text import Types
from agentrl.audit.reading.run_info import Json

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_NAME, _KEY = re.compile(r"<function=([^<>\n]{1,200})>"), re.compile(r"<parameter=([^<>\n]{1,200})>")
_BARE_LINE = re.compile(r"^[ \t]*(?=<function=)", re.MULTILINE)
_VALUE_END = re.compile(r"</parameter>\s*(?=<parameter=|</function>)")


def read_qwen3_coder(text: str, tools: Sequence[Json]) -> ParsedTurn:
    """Parse calls in `<tool_call>` blocks.

    A block begins at each `<tool_call>`. The text from a line that begins with `<function=` to the first `<tool_call>`
    is also a block. A value ends at a `</parameter>` that is followed by the next parameter or by the end of the
    function. One line break at each end of the value is dropped. If a function call in a block is not complete, the
    text from this call to `</tool_call>` (or to the end of the block) is one malformed call.
    """
    answer, thoughts = first_thoughts(text, _OPEN)
    before, *blocks = answer.split(_OPEN)
    bare = _BARE_LINE.search(before)
    if bare is not None:
        blocks.insert(0, before[bare.end() :])
        before = before[: bare.start()]
    types, calls, contents = Types(tools), list[Call](), [before]
    for block in blocks:
        position = _add_calls(block, calls, types)
        contents.append(block[position:])
    return ParsedTurn("".join(contents).strip(), tuple(calls), thoughts)


def _add_calls(block: str, calls: list[Call], types: Types) -> int:
    """Add the calls of a block to `calls`; return the position at which these calls end."""
    position, num_before = 0, len(calls)
    while len(calls) == num_before or _NAME.match(block, after_blanks(block, position)):
        call, end = _function(block, position, types)
        if end < 0:
            stop = block.find(_CLOSE, position)
            stop = len(block) if stop < 0 else stop
            calls.append(Call(call.name, None, block[position:stop].strip()))
            return stop + len(_CLOSE)
        calls.append(call)
        position = end
    close = after_blanks(block, position)
    return close + len(_CLOSE) if block.startswith(_CLOSE, close) else position


def _function(block: str, start: int, types: Types) -> tuple[Call, int]:
    """Return the function call at `start`, and its end. If the call is not complete, the end is -1."""
    head = _NAME.match(block, after_blanks(block, start))
    if head is None:
        return Call("", None), -1
    name = head[1].strip() if storable(head[1]) else ""
    arguments, position = dict[str, Json](), after_blanks(block, head.end())
    while (key := _KEY.match(block, position)) is not None:
        stop = _VALUE_END.search(block, key.end())
        if stop is None or key[1].strip() in arguments:
            return Call(name, None), -1
        value = block[key.end() : stop.start()].removeprefix("\n").removesuffix("\n")
        arguments[key[1].strip()] = types.value(name, key[1].strip(), value)
        position = stop.end()
    if not block.startswith("</function>", position):
        return Call(name, None), -1
    end = position + len("</function>")
    return Call(name, finite_object(arguments) if name else None, block[start:end].strip()), end
