"""Parser of the format of Gemma 4."""

from __future__ import annotations

import json
import re

from agentrl.audit.calls.json_values import finite_object
from agentrl.audit.calls.literals import NotLiteralError, literal_at
from agentrl.audit.calls.parsed import Call, ParsedTurn, storable
from agentrl.audit.reading.run_info import Json

_OPEN, _CLOSE = "<|tool_call>", "<tool_call|>"
_THOUGHTS, _THOUGHTS_END = "<|channel>", "<channel|>"
_HEAD = re.compile(r"\s*call:([^\s<>{}]{1,200})(?=\{)")
_TEXT = r'<\|"\|>(?P<text>.*?)<\|"\|>'
_KEY = r"(?<=[{,])[ \n]?(?P<key>(?!\s)[^:,{}\[\]\"'(\\]{1,201}):"
_PART = re.compile(rf"{_TEXT}|{_KEY}|(?P<wrong>[\"'(\\])", re.DOTALL)
_END = re.compile(rf"{_TEXT}|(?P<end><tool_call\|>)|<\|\"\|>", re.DOTALL)


def read_gemma4(text: str) -> ParsedTurn:
    """Parse `call:name{argument:value}` between `<|tool_call>` and `<tool_call|>`; strings are between two `<|"|>`."""
    answers, thoughts = _thoughts_apart(text)
    contents, calls = list[str](), list[Call]()
    for answer in answers:
        content, *blocks = answer.split(_OPEN)
        contents.append(content)
        for block in blocks:
            end = _end(block)
            body = block[:end] if end >= 0 else block.partition(_CLOSE)[0]
            calls.append(_call(body, closed=end >= 0))
            contents.append(block[len(body) + len(_CLOSE) :])
    return ParsedTurn("".join(contents).strip(), tuple(calls), thoughts)


def read_plain_gemma4(text: str) -> ParsedTurn:
    """Separate thoughts from content. Calls are not parsed and stay in the content."""
    contents, thoughts = _thoughts_apart(text)
    return ParsedTurn("".join(contents).strip(), (), thoughts)


def _thoughts_apart(text: str) -> tuple[list[str], str]:
    """Return (texts around thoughts, thoughts). Thoughts go from `<|channel>` to `<channel|>` or the turn's end."""
    contents, thoughts, position = list[str](), list[str](), 0
    while (start := text.find(_THOUGHTS, position)) >= 0:
        contents.append(text[position:start])
        end = text.find(_THOUGHTS_END, start + len(_THOUGHTS))
        end = len(text) if end < 0 else end
        thoughts.append(re.sub(r"\Athought\b", "", text[start + len(_THOUGHTS) : end]).strip())
        position = end + len(_THOUGHTS_END)
    contents.append(text[position:])
    return contents, "\n".join(filter(None, thoughts))


def _end(block: str) -> int:
    """Position of the first `<tool_call|>` outside a string; -1 if there is none."""
    for part in _END.finditer(block):
        if part["text"] is None:
            return part.start() if part["end"] else -1
    return -1


def _call(body: str, *, closed: bool) -> Call:
    head = _HEAD.match(body)
    if head is None:
        return Call("", None, body.strip())
    name = head[1] if storable(head[1]) else ""
    try:
        value = _value(body[head.end() :]) if closed and name else None
    except NotLiteralError:
        value = None
    return Call(name, finite_object(value), body.strip())


def _value(written: str) -> Json:
    """Return the arguments, read as a Python literal after strings and names are quoted."""
    literal = _PART.sub(_quoted, written)
    value, end = literal_at(literal, 0)
    if literal[end:].strip():
        raise NotLiteralError
    return value


def _quoted(part: re.Match[str]) -> str:
    if part["wrong"]:
        raise NotLiteralError
    if part["key"]:
        return json.dumps(part["key"].strip()) + ":"
    return json.dumps(part["text"])
