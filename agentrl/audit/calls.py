"""Independent parsers of tool calls, written from the formats' descriptions: split a turn into text and calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from agentrl.audit.reading.run_info import Json


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the model wrote it.

    Attributes:
        arguments: an object; None if the call is malformed.
        text: the raw text, which replaces the arguments of a malformed call.
    """

    name: str
    arguments: Mapping[str, Json] | None
    text: str = ""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A parsed turn: its text, stripped, and its calls in order."""

    content: str
    calls: tuple[Call, ...] = ()


def read_hermes(text: str) -> ParsedTurn:
    """Parse `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, except inside `<think>...</think>`.

    If the prompt contains the first `<think>`, all text before the first `</think>` is thought. A call ends at the
    first `</tool_call>` after its JSON. A call with `<tool_call>` or `</think>` before `</tool_call>` is unclosed.
    """
    pieces, calls, at, first_thought = list[str](), list[Call](), 0, True
    for start, end, call in _hermes_parts(text):
        pieces.append(text[at:start])
        at = end
        if call is not None:
            calls.append(call)
            continue
        if first_thought and text.startswith("</think>", start):
            pieces, calls = [text[:end]], []
        else:
            pieces.append(text[start:end])
        first_thought = False
    return ParsedTurn("".join([*pieces, text[at:]]).strip(), tuple(calls))


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
    value, length = _first_json(inside)
    close = re.compile("</tool_call>|</think>").search(inside, length)
    body = inside[: close.start()] if close else inside
    closed = close is not None and close[0] == "</tool_call>"
    end = start + (close.end() if close and closed else len(body))
    fields = value if isinstance(value, dict) else {}
    name = fields.get("name")
    name = name if isinstance(name, str) and _storable(name) else ""
    complete = closed and bool(name) and not body[length:].strip()
    arguments = _object(fields.get("arguments")) if complete else None
    return Call(name, arguments, body.strip()), end


_LABEL = re.compile(
    r"^[ \t>#*_-]{0,8}(thought|action input|action|observation|final answer)[ \t*_]{0,4}:[*_]{0,3}",
    re.MULTILINE | re.IGNORECASE,
)


def thoughts_apart(text: str) -> tuple[str, str]:
    """Return (content, thoughts) of text without calls, both stripped.

    Thoughts are in `<think>...</think>`, which may be cut; all text before a first `</think>` is thought, too.
    """
    first = text.find("</think>")
    text = f"<think>{text}" if first >= 0 and "<think>" not in text[:first] else text
    thoughts = re.findall(r"<think>(.*?)(?:</think>|\Z)", text, re.DOTALL)
    content = re.sub(r"<think>.*?(?:</think>|\Z)", "", text, flags=re.DOTALL)
    return content.strip(), "\n".join(filter(None, map(str.strip, thoughts)))


def read_react(text: str) -> ParsedTurn:
    """Parse `Action: name` followed by `Action Input: {...}`, up to an observation or the final answer.

    Thoughts in `<think>...</think>` at the start of the turn contain no actions.
    """
    thoughts = re.match(r"\s*<think>(?:.*?</think>|.*\Z)", text, re.DOTALL)
    if thoughts is None and "</think>" in text and "Action:" not in text.partition("</think>")[0]:
        thoughts = re.match(".*?</think>", text, re.DOTALL)
    if thoughts:
        answer = read_react_actions(text[thoughts.end() :])
        return ParsedTurn((thoughts[0] + answer.content).strip(), answer.calls)
    return read_react_actions(text)


def read_react_actions(text: str) -> ParsedTurn:
    """Parse the actions of a turn without thoughts."""
    marks = [(found[1].lower(), found.start(), found.end()) for found in _LABEL.finditer(text)]
    marks.append(("", len(text), len(text)))
    pieces, calls, action = [text[: marks[0][1]]], list[Call](), None
    for (label, start, end), (_, following, _) in pairwise(marks):
        if action is not None:
            calls.append(_react_call(action, text[end:following] if label == "action input" else ""))
        elif label == "action input":
            pieces.append(text[start:following])
        action = text[end:following] if label == "action" else None
        if label == "thought":
            pieces.append(text[start:following])
        elif label in ("final answer", "observation"):
            pieces.append(text[start:] if label == "final answer" else "")
            break
    if action is not None:
        calls.append(_react_call(action, ""))
    return ParsedTurn("".join(pieces).strip(), tuple(calls))


def _react_call(action: str, input_text: str) -> Call:
    name = action.strip().split("\n")[0].strip(" \t\r*`'\"")
    name = name if _storable(name) else ""
    text = input_text.strip().strip("`").removeprefix("json").strip()
    return Call(name, _object(text) if name and text else None, text)


READERS: Mapping[str, Callable[[str], ParsedTurn]] = {"hermes": read_hermes, "react": read_react}


def _first_json(text: str) -> tuple[Json, int]:
    """Return the JSON value at the start of `text` and its end; (None, 0) if there is none."""
    start = len(text) - len(text.lstrip())
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, 0
    return (None, 0) if _is_too_deep(value) else (value, end)


def _is_too_deep(value: Json) -> bool:
    """Whether a value is nested deeper than 100 levels; such a call counts as malformed."""
    level, depth = [value], 0
    while level and depth <= 100:
        inner = [each for each in level if isinstance(each, dict | list)]
        level = [item for each in inner for item in (each.values() if isinstance(each, dict) else each)]
        depth += 1
    return bool(level)


def _object(value: Json) -> Mapping[str, Json] | None:
    """Return an object, also if it is JSON text; None for other values and for objects with non-finite numbers."""
    if isinstance(value, str):
        value, end = _first_json(input_text := value)
        value = None if input_text[end:].strip() else value
    try:
        return value if isinstance(value, dict) and json.dumps(value, allow_nan=False) else None
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _storable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
