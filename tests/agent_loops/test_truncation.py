"""Shortening tool answers, with the option meanings of verl since May 2026."""

from __future__ import annotations

import pytest

from agentrl.agent_loops.limits import MARKER, truncate


@pytest.mark.parametrize(
    ("side", "expected"),
    [("left", MARKER + "cdef"), ("middle", "ab" + MARKER + "ef"), ("right", "abcd" + MARKER)],
)
def test_truncation_keeps_the_configured_side(side, expected):
    assert truncate("abcdef", 4, side) == expected


@pytest.mark.parametrize("side", ["left", "middle", "right"])
def test_limit_is_the_number_of_kept_characters(side):
    text = "".join(map(chr, range(97, 117)))
    for max_chars in range(1, 20):
        kept = truncate(text, max_chars, side).replace(MARKER, "|")
        head, tail = kept.split("|")
        assert len(head + tail) == max_chars
        assert text.startswith(head)
        assert text.endswith(tail)
    assert truncate(text, 20, side) == text
