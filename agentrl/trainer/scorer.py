"""The scorer: fills in the log-probabilities and values an algorithm asks for, and computes no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.algos.base import Need
from agentrl.backends.base import Score
from agentrl.samples import Sample


class Scorer:
    """Scores samples under the policy, its reference and the critic.

    Args:
        scoring: what answers which need; `Backend.score` is such a function.
    """

    def __init__(self, scoring: dict[Need, Score]) -> None:
        self._scoring = scoring

    async def __call__(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with `old_logprobs`, `ref_logprobs` and `values` where they are needed."""
        scored = list(samples)
        for need, score in self._scoring.items():
            scores = await score(scored)
            said = scores.logprobs if scores.values is None else scores.values
            scored = [
                replace(sample, **{need: numbers})  # type: ignore[arg-type]  # a need is the name of such a field
                for sample, numbers in zip(scored, said, strict=True)
            ]
        return scored
