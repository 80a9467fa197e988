"""Thoughts of a model turn: the text between `<think>` and `</think>`."""

from __future__ import annotations

THINK, THINK_END = "<think>", "</think>"


def split_thinking(text: str, start: str = THINK, end: str = THINK_END, *, call: str = "") -> tuple[str, str]:
    """Split a turn into (thoughts without tags, text after the thoughts).

    Thoughts are the start of the turn, up to the first `end`; the tag `start` may be missing, because many templates
    write it in the generation prompt. A turn that begins with `start` and has no `end` was cut: it is all thoughts.

    Args:
        call: text that begins a call. Without `start`, an `end` after this text belongs to the call.
    """
    before, ended, after = text.partition(end)
    begun = before.lstrip().startswith(start)
    if not begun and (not ended or (call and call in before)):
        return "", text
    thoughts = before.partition(start)[2] if begun else before
    return thoughts.strip("\n"), after
