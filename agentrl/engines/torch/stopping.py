"""End of a completion: stop tokens, stop strings and length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from agentrl.engines.base import FinishReason

if TYPE_CHECKING:
    from agentrl.engines.torch.jobs import Job  # imports torch

Decode = Callable[[Sequence[int]], str]
"""Function from token ids to text, special tokens included."""


class DecodingTokenizer(Protocol):
    """Tokenizer method that stop strings need."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of token ids."""
        ...


def end_of(job: Job, tokenizer: DecodingTokenizer | None) -> tuple[FinishReason, str | None] | None:
    """Reason why a job ends with its newest token, and the matched stop string; None if the job continues."""
    stops, matched = job.request.sampling.stop, None
    if stops and tokenizer is not None:
        matched = matched_stop(tokenizer, job.token_ids[-len(job.logprobs) :], stops)
    if matched is not None or job.token_ids[-1] in job.stop_token_ids:
        return FinishReason.STOP, matched
    return (FinishReason.LENGTH, None) if len(job.token_ids) >= job.max_length else None


def matched_stop(tokenizer: DecodingTokenizer, token_ids: Sequence[int], stops: Sequence[str]) -> str | None:
    """The first of `stops` that the newest token completed, or None.

    Only the last tokens are decoded. Every token has at least one byte, so a stop string of n bytes spans at most n
    tokens. The window has four more tokens, because its first token may start in the middle of a character.
    """
    window = max(len(stop.encode()) for stop in stops) + 4
    text = tokenizer.decode(token_ids[-window:], skip_special_tokens=False)
    return next((stop for stop in stops if stop in text), None)
