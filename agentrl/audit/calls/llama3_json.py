"""Parser of the format of Llama 3.1."""

from __future__ import annotations

import re

from agentrl.audit.calls.json_values import after_blanks, finite_object, first_json, named_call
from agentrl.audit.calls.literals import NotLiteralError, call_at
from agentrl.audit.calls.parsed import Call, ParsedTurn
from agentrl.audit.calls.thoughts import first_thoughts

_TAG = "<|python_tag|>"
_BARE = re.compile(r'\s*\{\s*"(name"|parameters"|arguments"|type"\s*:\s*"function")')
_TOOL = re.compile(r"\s*[\w.-]+\.call\(")


def read_llama3_json(text: str) -> ParsedTurn:
    """Parse `{"name": ..., "parameters": {...}}` and `tool.call(a=1)`, separated by `;`, after `<|python_tag|>`.

    Without the tag, an answer that starts with the JSON of a call is also parsed. If the text of a call cannot be read
    as JSON or as `tool.call(...)`, the rest of the answer from the start of this call is one malformed call.
    """
    answer, thoughts = (text, "") if _BARE.match(text) else first_thoughts(text, _TAG)
    start = answer.find(_TAG)
    if start < 0 and not _BARE.match(answer):
        return ParsedTurn(answer.strip(), thoughts=thoughts)
    content, position = answer[: max(start, 0)], start + len(_TAG) if start >= 0 else 0
    calls = list[Call]()
    while not calls or answer.startswith(";", after_blanks(answer, position)):
        position = after_blanks(answer, position) + 1 if calls else position
        call, position = _call_at(answer, position)
        calls.append(call)
    return ParsedTurn((content + answer[position:]).strip(), tuple(calls), thoughts)


def _call_at(text: str, start: int) -> tuple[Call, int]:
    call, end = _tool_at(text, start) if _TOOL.match(text, start) else _json_at(text, start)
    return (call, end) if call else (Call("", None, text[start:].strip()), len(text))


def _json_at(text: str, start: int) -> tuple[Call | None, int]:
    value, end = first_json(text, start)
    return (named_call(value, text[start:end].strip(), "parameters", "arguments"), end) if end else (None, 0)


def _tool_at(text: str, start: int) -> tuple[Call | None, int]:
    try:
        name, arguments, end = call_at(text, start)
    except NotLiteralError:
        return None, 0
    return (None, 0) if finite_object(arguments) is None else (Call(name.removesuffix(".call"), arguments), end)
