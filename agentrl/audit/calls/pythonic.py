"""Parser of calls written as a Python list."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentrl.audit.calls.json_values import after_blanks, finite_object
from agentrl.audit.calls.literals import NotLiteralError, call_at
from agentrl.audit.calls.parsed import Call, ParsedTurn
from agentrl.audit.calls.thoughts import first_thoughts

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_FENCES = ["<|python_start|>", "<|python_tag|>", "```tool_code\n", "```tool_call\n", "```python\n"]
_LINE = re.compile(rf"^[ \t]*(?:{'|'.join(map(re.escape, _FENCES))})?[ \t]*\[(?=\s*(?!\d)\w[\w.-]*\()", re.MULTILINE)
_FENCE_END = re.compile(r"\s*(?:```|<\|python_end\|>)|")
_NAME = re.compile(r"(?!\d)\w[\w.-]*|")


def read_pythonic(text: str) -> ParsedTurn:
    """Parse lists of calls with literal arguments. A list begins a line or follows `<|tool_call_start|>`.

    If an item of a list cannot be read, the text from this item to `<|tool_call_end|>` (or to the end of the text) is
    one malformed call.
    """
    answer, thoughts = (text, "") if _LINE.match(text) else first_thoughts(text, _OPEN)
    before, *blocks = answer.split(_OPEN)
    contents, calls, position = list[str](), list[Call](), 0
    while (line := _LINE.search(before, position)) is not None:
        contents.append(before[position : line.start()])
        found, end = _list(before, line.end())
        calls += found
        fence = _FENCE_END.match(before, end)
        position = fence.end() if fence else end
    contents.append(before[position:])
    for found, content in map(_block, blocks):
        calls += found
        contents.append(content)
    return ParsedTurn("".join(contents).strip(), tuple(calls), thoughts)


def _block(block: str) -> tuple[list[Call], str]:
    """Return the calls after `<|tool_call_start|>`, and the content after them."""
    body, _, after = block.partition(_CLOSE)
    start = after_blanks(block, 0)
    if not block.startswith("[", start):
        return [Call("", None, body.strip())], after
    calls, end = _list(block, start + 1)
    if any(call.arguments is None for call in calls):
        return calls, after
    return calls, block[end:].lstrip().removeprefix(_CLOSE)


def _list(text: str, start: int) -> tuple[list[Call], int]:
    """Return the calls of a list whose first item is at `start`, and the end of the list."""
    items = list(_items(text, start))
    return [call for call, _ in items], items[-1][1]


def _items(text: str, start: int) -> Iterator[tuple[Call, int]]:
    mark = ","
    while mark == ",":
        name = ""
        try:
            found = _NAME.match(text, after_blanks(text, start))
            name = found[0] if found else ""
            written, arguments, end = call_at(text, start)
            name = ""
            if finite_object(arguments) is None:
                raise NotLiteralError
        except NotLiteralError:
            yield _rest(name, text, start), len(text)
            return
        close = after_blanks(text, end)
        mark = text[close : close + 1]
        yield Call(written, arguments), close + 1
        if mark not in (",", "]") or not mark:
            yield _rest("", text, start), len(text)
            return
        start = close + 1


def _rest(name: str, text: str, start: int) -> Call:
    return Call(name, None, text[start:].partition(_CLOSE)[0].strip())
