"""Parsers of calls in a JSON list after a mark: Granite 3 and Phi-4-mini."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrl.audit.calls.json_values import after_blanks, first_json, named_call
from agentrl.audit.calls.parsed import Call, ParsedTurn
from agentrl.audit.calls.thoughts import first_thoughts

_MARK, _END = "<|tool_call|>", "<|/tool_call|>"


@dataclass(frozen=True, slots=True)
class ListMarks:
    """Marks of a format.

    Attributes:
        begin: matches the mark before a list: `<|tool_call|>`, or another mark of the format.
        ends: whether `<|/tool_call|>` must follow a list that comes after `<|tool_call|>`; if false, `<|/tool_call|>`
            must not follow. After a list that comes after the other mark, `<|/tool_call|>` must never follow.
    """

    begin: re.Pattern[str]
    ends: bool


LIST_MARKS = {
    "granite": ListMarks(re.compile(r"<\|tool_call\|>|<tool_call>(?=\s*\[)"), ends=False),
    "phi4": ListMarks(re.compile(r"<\|tool_call\|>|^functools(?=\[)", re.MULTILINE), ends=True),
}
"""Format -> its marks."""


def read_json_lists(text: str, marks: ListMarks) -> ParsedTurn:
    """Parse the list after each mark."""
    answer, thoughts = first_thoughts(text, _MARK)
    begins = list(marks.begin.finditer(answer))
    stops = [*(begin.start() for begin in begins), len(answer)]
    content, calls = answer[: stops[0]], list[Call]()
    for begin, stop in zip(begins, stops[1:], strict=True):
        block = answer[begin.end() : stop]
        found, end = _ended_list(block, ends=marks.ends and begin[0] == _MARK)
        calls += found
        content += block[end:]
    return ParsedTurn(content.strip(), tuple(calls), thoughts)


def call_list(block: str) -> tuple[list[Call], int]:
    """Return the calls of the JSON list at the start of a block, and the list's end.

    If there is no list, return one malformed call, and the end of the block.
    """
    value, end = first_json(block)
    if not isinstance(value, list) or not value:
        return [Call("", None, block.strip())], len(block)
    return [named_call(item, block[:end].strip(), "arguments") for item in value], end


def _ended_list(block: str, *, ends: bool) -> tuple[list[Call], int]:
    calls, end = call_list(block)
    following = after_blanks(block, end)
    ended = block.startswith(_END, following)
    if ended != ends and all(call.arguments is not None for call in calls):
        return [Call("", None, block.strip())], len(block)
    return calls, (following + len(_END) * ended) if ends else end
