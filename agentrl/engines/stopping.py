"""When a completion ends: stop tokens, stop strings, length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from agentrl.engines.base import FinishReason
from agentrl.engines.jobs import Job

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens included."""


class DecodingTokenizer(Protocol):
    """What stop strings need of a tokenizer."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of some tokens."""
        ...


def end_of(job: Job, tokenizer: DecodingTokenizer | None) -> tuple[FinishReason, str | None] | None:
    """Why a job ends with its newest token, and the stop string that it completed; None where it goes on."""
    stops, matched = job.request.sampling.stop, None
    if stops and tokenizer is not None:
        matched = matched_stop(tokenizer, job.token_ids[-len(job.logprobs) :], stops)
    if matched is not None or job.token_ids[-1] in job.stop_token_ids:
        return FinishReason.STOP, matched
    return (FinishReason.LENGTH, None) if len(job.token_ids) >= job.max_length else None


def matched_stop(tokenizer: DecodingTokenizer, token_ids: Sequence[int], stops: Sequence[str]) -> str | None:
    """The first of `stops` that the newest token completed, or None.

    Only the tail is decoded: a stop of n bytes cannot begin more than n tokens back, as every token has a byte.
    Four more keep the window's first token, which may be half a character, out of the match.
    """
    window = max(len(stop.encode()) for stop in stops) + 4
    text = tokenizer.decode(token_ids[-window:], skip_special_tokens=False)
    return next((stop for stop in stops if stop in text), None)
