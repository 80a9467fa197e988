"""What every engine refuses of a request, before it disturbs another."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.engines.base import SamplingParams


def check_context(token_ids: Sequence[int], vocabulary: int, max_sequence_length: int) -> None:
    """Refuse a context that no token can follow.

    Raises:
        ValueError: it is empty, has an id outside the vocabulary, or leaves no room.
    """
    if len(token_ids) == 0:
        raise ValueError("the context is empty")
    if min(token_ids) < 0 or max(token_ids) >= vocabulary:
        raise ValueError(f"the context has a token id outside the vocabulary of {vocabulary}")
    if (length := len(token_ids)) >= max_sequence_length:
        raise ValueError(f"the context has {length} tokens and leaves no room in {max_sequence_length}")


def check_sampling(sampling: SamplingParams) -> None:
    """Refuse parameters that mean nothing.

    Raises:
        ValueError: names the parameter and its range.
    """
    for valid, rule in (
        (0 <= sampling.temperature < float("inf"), f"temperature {sampling.temperature} is not a number from 0"),
        (0 < sampling.top_p <= 1, f"top_p {sampling.top_p} is not above 0 and at most 1"),
        (0 <= sampling.min_p <= 1, f"min_p {sampling.min_p} is not between 0 and 1"),
        (sampling.top_k == -1 or sampling.top_k > 0, f"top_k {sampling.top_k} is neither -1 nor positive"),
        (sampling.max_new_tokens is None or sampling.max_new_tokens > 0, "max_new_tokens must be positive"),
    ):
        if not valid:
            raise ValueError(rule)
