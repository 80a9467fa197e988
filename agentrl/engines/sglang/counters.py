"""Counters of the SGLang engine."""

from __future__ import annotations

from collections import Counter

from agentrl.engines.base import Completion, GenerateRequest

COUNTED = (
    "prompt_tokens",
    "cached_tokens",
    "forwarded_tokens",
    "sampled_tokens",
    "later_prompt_tokens",
    "later_cached_tokens",
    "num_retried",
)


class RequestCounters:
    """Counters of completed requests since the start; a request that was sent twice counts once.

    `forwarded_tokens`: computed tokens (uncached context tokens and sampled tokens). `later_prompt_tokens`: context
    tokens that can be in a cache, because the conversation's previous turn contained or sampled them; new tool results
    are not counted. `later_cached_share`: fraction of `later_prompt_tokens` that were cached.
    """

    def __init__(self) -> None:
        self._counters: Counter[str] = Counter()
        self._num_said: dict[str, int] = {}  # number of tokens of each open conversation after its last completion

    def answered(self, request: GenerateRequest, completion: Completion) -> None:
        """Count a completed request."""
        num_context, num_cached = len(request.token_ids), completion.num_cached_tokens
        self._counters["prompt_tokens"] += num_context
        self._counters["cached_tokens"] += num_cached
        self._counters["forwarded_tokens"] += num_context - num_cached + len(completion.token_ids)
        self._counters["sampled_tokens"] += len(completion.token_ids)
        num_before = min(self._num_said.get(request.session, 0), num_context)
        self._counters["later_prompt_tokens"] += num_before
        self._counters["later_cached_tokens"] += min(num_cached, num_before)
        if request.session:
            self._num_said[request.session] = num_context + len(completion.token_ids)

    def retried(self) -> None:
        """Count a request that is sent again."""
        self._counters["num_retried"] += 1

    def forget(self, session: str) -> None:
        """Drop the state of a finished conversation."""
        self._num_said.pop(session, None)

    def metrics(self) -> dict[str, float]:
        """Counters by name."""
        share = self._counters["later_cached_tokens"] / max(1, self._counters["later_prompt_tokens"])
        return {**{name: float(self._counters[name]) for name in COUNTED}, "later_cached_share": share}
