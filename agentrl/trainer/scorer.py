"""The scorer: fills in the log-probabilities an algorithm asks for, and computes no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.algos.base import Need
from agentrl.backends.base import Score
from agentrl.samples import Sample


class Scorer:
    """Scores samples under the policy and its reference.

    Args:
        scoring: what answers which need; `Backend.score` is such a function.
    """

    def __init__(self, scoring: dict[Need, Score]) -> None:
        self._scoring = scoring

    async def __call__(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with `old_logprobs` and `ref_logprobs` where they are needed."""
        scored = list(samples)
        for need, score in self._scoring.items():
            scores = await score(scored)
            scored = [
                replace(sample, **{need: logprobs})  # type: ignore[arg-type]  # a need is the name of such a field
                for sample, logprobs in zip(scored, scores.logprobs, strict=True)
            ]
        return scored
