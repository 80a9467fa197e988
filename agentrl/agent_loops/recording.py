"""Record of the engine's completions, to check that each trained token was sampled after the tokens that precede it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from agentrl.engines.base import Completion, SamplingParams
from agentrl.types.trajectory import Author, Segment, VersionSpan

V = TypeVar("V")

_TAIL = 32
"""Two contexts count as equal if their lengths and their last `_TAIL` tokens are equal. Comparing all tokens would take
quadratic time."""


def model_segment(completion: Completion, sampling: SamplingParams) -> Segment:
    """Make a segment of a trajectory from a completion."""
    return Segment(
        Author.MODEL,
        completion.token_ids,
        completion.logprobs,
        completion.policy_versions,
        sampling.temperature or 1.0,  # greedy sampling reports log-probabilities at temperature 1
    )


@dataclass(slots=True, eq=False)
class _Sampled:
    num_context: int
    tail: int
    segment: Segment


class Recording:
    """The completions of one rollout. Each completion can be claimed only once, so no token is trained twice."""

    def __init__(self) -> None:
        self._unclaimed: list[_Sampled] = []
        self._claimed: list[_Sampled] = []
        self.last: Completion | None = None

    def add(self, context: Sequence[int], num_context: int, completion: Completion, sampling: SamplingParams) -> None:
        """Store a completion of the first `num_context` tokens of `context`, which may be longer by now."""
        self.last = completion
        if completion.token_ids:
            segment = model_segment(completion, sampling)
            self._unclaimed.append(_Sampled(num_context, _tail(context, num_context), segment))

    def claim(self, token_ids: Sequence[int], start: int, stop: int, logprobs: Sequence[float] = ()) -> list[Segment]:
        """Return the model segments that `token_ids[start:stop]` consists of; a completion may be cut at `stop`.

        If the same context has several equal completions, the tokens' `logprobs` select the right one.

        Raises:
            ValueError: the tokens were never sampled, were sampled in another context, or are claimed twice.
        """
        segments: list[Segment] = []
        first = start
        while start < stop:
            sampled = self._find(token_ids, start, stop, logprobs[start - first :])
            self._unclaimed.remove(sampled)
            self._claimed.append(sampled)
            segments.append(_head(sampled.segment, stop - start))
            start += len(segments[-1])
        return segments

    def _find(self, token_ids: Sequence[int], start: int, stop: int, logprobs: Sequence[float]) -> _Sampled:
        wanted, tail = list(token_ids[start:stop]), _tail(token_ids, start)
        found = [
            sampled
            for sampled in self._unclaimed
            if sampled.num_context == start and sampled.tail == tail and _agree(sampled.segment.token_ids, wanted)
        ]
        if not found:
            raise ValueError(f"tokens {start} to {stop} are marked as sampled, {self._diagnosis(wanted)}")
        if len(found) == 1:
            return found[0]
        # a context may have several completions: prefer a complete one to the beginning of a longer one
        return max(
            found,
            key=lambda sampled: (
                _agree(sampled.segment.logprobs or (), list(logprobs)),
                len(sampled.segment) == len(wanted),
                len(sampled.segment),
            ),
        )

    def _diagnosis(self, wanted: list[int]) -> str:
        if any(_agree(sampled.segment.token_ids, wanted) for sampled in self._unclaimed):
            return "but were sampled after a different context: return one trajectory for each context"
        if any(_agree(sampled.segment.token_ids, wanted) for sampled in self._claimed):
            return "but are already in another trained segment: put a copy into a prompt"
        return "but the engine did not sample them"


def _tail(context: Sequence[int], num_context: int) -> int:
    """Hash of the last `_TAIL` context tokens. Storing the tokens themselves would slow down garbage collection."""
    return hash(tuple(context[max(0, num_context - _TAIL) : num_context]))


def _agree(sampled: Sequence[V], wanted: list[V]) -> bool:
    num_common = min(len(sampled), len(wanted))
    return list(sampled[:num_common]) == wanted[:num_common]


def _head(segment: Segment, num_tokens: int) -> Segment:
    if num_tokens >= len(segment):
        return segment
    assert segment.logprobs is not None  # model segments have log-probabilities
    return Segment(
        segment.author,
        segment.token_ids[:num_tokens],
        segment.logprobs[:num_tokens],
        _first_spans(segment.policy_versions, num_tokens),
        segment.temperature,
    )


def _first_spans(spans: Sequence[VersionSpan], num_tokens: int) -> list[VersionSpan]:
    first = []
    for span in spans:
        taken = min(span.num_tokens, num_tokens)
        num_tokens -= taken
        if taken:
            first.append(VersionSpan(span.version, taken))
    return first
