"""Shortening tool answers."""

from __future__ import annotations

from typing import Literal

MARKER = "...(truncated)..."


def truncate(text: str, max_chars: int, side: Literal["left", "middle", "right"]) -> str:
    """`text` if it has at most `max_chars` characters, else what is kept of it plus a marker where it was cut.

    left cuts the left and keeps the TAIL, right keeps the head, middle keeps both ends:

        truncate("abcdef", 4, "left") = "...(truncated)...cdef"     "middle" = "ab...(truncated)...ef"

    These are verl's meanings since May 2026; before, its left and right were the other way round.
    """
    if len(text) <= max_chars:
        return text
    num_head = {"left": 0, "middle": (max_chars + 1) // 2, "right": max_chars}[side]
    return text[:num_head] + MARKER + text[len(text) - (max_chars - num_head) :]
