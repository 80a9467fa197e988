"""Parsers of DeepSeek's and Kimi's formats: name and JSON arguments of a call are between special tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from agentrl.audit.calls.json_values import after_blanks, finite_object, first_json
from agentrl.audit.calls.parsed import Call, ParsedTurn, storable
from agentrl.audit.calls.thoughts import first_thoughts

_SEPARATOR = "<｜tool▁sep｜>"
_FENCE = re.compile(r"```(?:json)?(?=[\s{])")
_WORD = re.compile(r"[^\s<>]+")
_NUMBER = re.compile(r"(?<=.):\d{1,9}\Z")


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks of a format.

    Attributes:
        section: marks before the first call and after the last call.
        call: marks before and after each call.
        head: function that returns the name at the start of a call, and the start of the arguments; the name is "" if
            there is no valid name.
        tail: text between the arguments and the end mark of a call.
    """

    section: tuple[str, str]
    call: tuple[str, str]
    head: Callable[[str], tuple[str, int]]
    tail: str = ""


def read_marked(text: str, marks: Marks) -> ParsedTurn:
    """Parse calls between marks. Each begin mark of a call begins a new call, even inside an argument."""
    answer, thoughts = first_thoughts(text, marks.call[0])
    before, *blocks = answer.split(marks.call[0])
    content, section, after = before.partition(marks.section[0])
    if section and not blocks:
        return ParsedTurn(content.strip(), (Call("", None, after.strip()),), thoughts)
    content, calls = content + after, list[Call]()
    for block in blocks:
        call, end = _call(block, marks)
        calls.append(call)
        content += block[end:].lstrip().removeprefix(marks.section[1])
    return ParsedTurn(content.strip(), tuple(calls), thoughts)


def _call(block: str, marks: Marks) -> tuple[Call, int]:
    """Return the call of a block, and the end of the call."""
    name, start = marks.head(block)
    value, end = first_json(block, start) if name else (None, 0)
    arguments = finite_object(value) if storable(name) else None
    position = after_blanks(block, end)
    if block.startswith(marks.tail, position):
        position = after_blanks(block, position + len(marks.tail))
        if arguments is not None and block.startswith(marks.call[1], position):
            return Call(name, arguments), position + len(marks.call[1])
    body, close, _ = block.partition(marks.call[1])
    return Call(name if storable(name) else "", None, body.strip()), len(body) + len(close)


def _name(text: str) -> str:
    name = text.strip()
    return name if _WORD.fullmatch(name) and len(name) <= 200 else ""


def _v3_head(block: str) -> tuple[str, int]:
    kind, _, rest = block.partition(_SEPARATOR)
    start = after_blanks(rest, 0)
    fence = _FENCE.search(rest, start + 1)
    if kind.strip() != "function" or fence is None:
        return "", 0
    return _name(rest[: fence.start()]), len(kind) + len(_SEPARATOR) + fence.end()


def _v3_1_head(block: str) -> tuple[str, int]:
    name, mark, _ = block.partition(_SEPARATOR)
    return _name(name) if mark else "", len(name) + len(mark)


def _kimi_head(block: str) -> tuple[str, int]:
    written, mark, _ = block.partition("<|tool_call_argument_begin|>")
    call_id = written.strip()
    if not mark or not _WORD.fullmatch(call_id):
        return "", 0
    name = call_id.removeprefix("functions.") or call_id
    return _name(_NUMBER.sub("", name)), len(written) + len(mark)


_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
_KIMI = (
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ("<|tool_call_begin|>", "<|tool_call_end|>"),
)
MARKS = {
    "deepseek_v3": Marks(*_DEEPSEEK, _v3_head, "```"),
    "deepseek_v3.1": Marks(*_DEEPSEEK, _v3_1_head),
    "kimi_k2": Marks(*_KIMI, _kimi_head),
}
"""Format -> its marks."""
