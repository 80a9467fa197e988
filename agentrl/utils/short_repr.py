"""Short forms of values for a one-line `repr`."""

from __future__ import annotations

from itertools import islice


def short(text: object, most: int = 30) -> str:
    """Return the text on one line, quoted, and cut to at most `most` characters."""
    words = " ".join(islice(str(text)[: 4 * most].split(), most))
    return repr(words if len(words) <= most else f"{words[: most - 1]}…")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 token`, `2 tokens`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
