"""Parser of the ReAct format."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from agentrl.audit.calls.json_values import json_object
from agentrl.audit.calls.parsed import Call, ParsedTurn, storable
from agentrl.audit.calls.thoughts import first_thoughts

_LABEL = re.compile(
    r"^[ \t>#*_-]{0,8}(thought|action input|action|observation|final answer)[ \t*_]{0,4}:[*_]{0,3}",
    re.MULTILINE | re.IGNORECASE,
)


def read_react(text: str) -> ParsedTurn:
    """Parse `Action: name` followed by `Action Input: {...}`, up to an observation or the final answer.

    Actions inside `<think>...</think>` at the start of the turn are not parsed.
    """
    answer, thoughts = first_thoughts(text, "Action:")
    parsed = read_react_actions(answer)
    together = text[: len(text) - len(answer)] + parsed.content
    return replace(parsed, thoughts=thoughts, together=together.strip())


def read_react_actions(text: str) -> ParsedTurn:
    """Parse the actions in text that has no `<think>` thoughts."""
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
    name = name if storable(name) else ""
    text = input_text.strip().strip("`").removeprefix("json").strip()
    return Call(name, json_object(text) if name and text else None, text)
