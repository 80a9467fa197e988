"""Scorer: computes only the log-probabilities and values that the algorithm needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.algos.base import Need
from agentrl.backends.base import Score
from agentrl.types.sample import Sample


class Scorer:
    """Scores samples with the policy, the reference and the critic.

    Args:
        scoring: kind of score -> the function that computes it, for example `Backend.score`.
    """

    def __init__(self, scoring: dict[Need, Score]) -> None:
        self._scoring = scoring

    async def __call__(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples with the scores of `scoring`: `old_logprobs`, `ref_logprobs`, `values`.

        If a scoring function also returns the experts of each token, they replace `routed_experts` of the samples.
        """
        scored = list(samples)
        for need, score in self._scoring.items():
            scores = await score(scored)
            values = scores.logprobs if scores.values is None else scores.values
            scored = [
                replace(sample, **{need: numbers})  # type: ignore[arg-type]  # a need is a field name of Sample
                for sample, numbers in zip(scored, values, strict=True)
            ]
            if (recorded := scores.routed_experts) is not None:
                pairs = zip(scored, recorded, strict=True)
                scored = [replace(sample, routed_experts=experts) for sample, experts in pairs]
        return scored
