"""Parser of the hermes format."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentrl.audit.calls.json_values import first_json, json_object
from agentrl.audit.calls.parsed import Call, ParsedTurn, storable


def read_hermes(text: str) -> ParsedTurn:
    """Parse `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, except inside `<think>...</think>`.

    If the prompt contains the first `<think>`, all text before the first `</think>` belongs to the thoughts. A call
    ends at the first `</tool_call>` after its JSON. If another `<tool_call>`, `</think>` or the end of the text comes
    first, the call is not closed and counts as malformed.
    """
    pieces, together, thoughts, calls, at = list[str](), list[str](), list[str](), list[Call](), 0
    may_begin = True
    for start, end, call in _hermes_parts(text):
        pieces.append(text[at:start])
        together.append(text[at:start])
        at = end
        if call is not None:
            calls.append(call)
            continue
        together.append(text[start:end])
        if text.startswith("<think>", start):
            thoughts.append(text[start:end].removeprefix("<think>").removesuffix("</think>"))
        elif may_begin:
            pieces, together, thoughts, calls = [], [text[:end]], [text[:start]], []
        else:
            pieces.append(text[start:end])
        may_begin = False
    thought = "\n".join(filter(None, map(str.strip, thoughts)))
    content, whole = ("".join([*each, text[at:]]).strip() for each in (pieces, together))
    return ParsedTurn(content, tuple(calls), thought, whole)


def _hermes_parts(text: str) -> Iterator[tuple[int, int, Call | None]]:
    """Yield (start, end, call) of calls and thoughts, from left to right; for a thought, call is None."""
    at = 0
    while (found := re.compile(r"<tool_call>|</?think>").search(text, at)) is not None:
        call = None
        if found[0] == "<tool_call>":
            call, at = _hermes_call(text, found.end())
        else:
            close = text.find("</think>", found.start())
            at = len(text) if close < 0 else close + 8
        yield found.start(), at, call


def _hermes_call(text: str, start: int) -> tuple[Call, int]:
    stop = text.find("<tool_call>", start)
    inside = text[start : len(text) if stop < 0 else stop]
    value, length = first_json(inside)
    close = re.compile("</tool_call>|</think>").search(inside, length)
    body = inside[: close.start()] if close else inside
    closed = close is not None and close[0] == "</tool_call>"
    end = start + (close.end() if close and closed else len(body))
    fields = value if isinstance(value, dict) else {}
    name = fields.get("name")
    name = name if isinstance(name, str) and storable(name) else ""
    complete = closed and bool(name) and not body[length:].strip()
    arguments = json_object(fields.get("arguments")) if complete else None
    return Call(name, arguments, body.strip()), end
