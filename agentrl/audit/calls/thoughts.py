"""Thoughts in a model's text."""

from __future__ import annotations

import re

from agentrl.audit.calls.parsed import ParsedTurn


def told_apart(turn: ParsedTurn) -> tuple[str, str]:
    """Return (content, thoughts) of a turn, both stripped."""
    if turn.thoughts is None:
        return thoughts_apart(turn.content)
    return turn.content.strip(), turn.thoughts.strip()


def thoughts_apart(text: str) -> tuple[str, str]:
    """Return (content, thoughts) of text without calls, both stripped.

    Thoughts are in `<think>...</think>`; the end tag may be missing. If the start tag is missing, all text before the
    first `</think>` is also thoughts.
    """
    first = text.find("</think>")
    text = f"<think>{text}" if first >= 0 and "<think>" not in text[:first] else text
    thoughts = re.findall(r"<think>(.*?)(?:</think>|\Z)", text, re.DOTALL)
    content = re.sub(r"<think>.*?(?:</think>|\Z)", "", text, flags=re.DOTALL)
    return content.strip(), "\n".join(filter(None, map(str.strip, thoughts)))


def first_thoughts(text: str, call: str, marks: tuple[str, str] = ("<think>", "</think>")) -> tuple[str, str]:
    """Return (text after the thoughts, thoughts) of a turn, for formats in which thoughts begin the turn.

    Thoughts end at the first end mark. A turn with the start mark but no end mark was cut off in its thoughts. If the
    turn does not begin with the start mark, the prompt may contain the start mark. In this case, the text before the
    end mark belongs to the thoughts, unless `call` (the mark of a call) comes before the end mark.
    """
    begin, end = marks
    found, begins = text.find(end), text.lstrip().startswith(begin)
    if not begins and (found < 0 or 0 <= text.find(call) < found):
        return text, ""
    stop = len(text) if found < 0 else found
    start = text.index(begin) + len(begin) if begins else 0
    return text[stop + len(end) :], text[start:stop].strip()
