"""When a completion ends: stop tokens, stop strings, length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens included."""


class DecodingTokenizer(Protocol):
    """What stop strings need of a tokenizer."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of some tokens."""
        ...


def matched_stop(tokenizer: DecodingTokenizer, token_ids: Sequence[int], stops: Sequence[str]) -> str | None:
    """The first of `stops` that the newest token completed, or None.

    Only the tail is decoded: a stop of n bytes cannot begin more than n tokens back, as every token has a byte.
    Four more keep the window's first token, which may be half a character, out of the match.
    """
    window = max(len(stop.encode()) for stop in stops) + 4
    text = tokenizer.decode(token_ids[-window:], skip_special_tokens=False)
    return next((stop for stop in stops if stop in text), None)
