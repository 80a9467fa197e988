"""Thoughts of a model turn: the text between `<think>` and `</think>`."""

from __future__ import annotations

import re

from agentrl.chat.base import ParsedTurn, ThoughtReader, ToolParser

THINK, THINK_END = "<think>", "</think>"
_THOUGHT = re.compile(f"({THINK}.*?(?:{THINK_END}|\\Z))", re.DOTALL)


def split_thinking(text: str, start: str = THINK, end: str = THINK_END, *, call: str = "") -> tuple[str, str]:
    """Split a turn into (thoughts without tags, text after the thoughts).

    Thoughts are the start of the turn, up to the first `end`; the tag `start` may be missing, because many templates
    write it in the generation prompt. A turn with `start` but no `end` was truncated: all of it is thoughts.

    Args:
        call: text that begins a call. In a turn without `start`, an `end` that follows this text is part of the call.
    """
    before, ended, after = text.partition(end)
    tagged = before.lstrip().startswith(start)
    if not tagged and (not ended or (call and call in before)):
        return "", text
    thoughts = before.partition(start)[2] if tagged else before
    return thoughts.strip("\n"), after


def tell_apart(text: str) -> tuple[str, str]:
    """Return (thoughts, rest) of a text that has no calls, both stripped. Thoughts may be anywhere in the text."""
    first, ended, rest = text.partition(THINK_END)
    thoughts, pieces = list[str](), list[str]()
    if ended and THINK not in first:
        thoughts, text = [first], rest
    for piece in _THOUGHT.split(text):
        (thoughts if piece.startswith(THINK) else pieces).append(piece.removeprefix(THINK).removesuffix(THINK_END))
    return "\n".join(filter(None, map(str.strip, thoughts))), "".join(pieces).strip()


def join_thinking(thinking: str, content: str) -> str:
    """Return the text of a turn with these thoughts, as most models write it."""
    return f"{THINK}\n{thinking}\n{THINK_END}\n\n{content}" if thinking else content


def plain_turn(parser: ToolParser, text: str) -> ParsedTurn:
    """Parse the thoughts and the content of a turn, but not its calls.

    Used if the turn had no tools, and for truncated turns.
    """
    if isinstance(parser, ThoughtReader):
        thinking, rest = parser.split_thinking(text)
        return ParsedTurn(rest.lstrip("\n") if len(rest) < len(text) else text, thinking=thinking)
    if THINK not in text and THINK_END not in text:
        return ParsedTurn(text)
    thinking, rest = tell_apart(text)
    return ParsedTurn(rest, thinking=thinking)
