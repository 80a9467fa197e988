"""The scorer puts scores, and the experts that a score recorded, into the samples."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import torch

from agentrl.backends.base import Score, Scores
from agentrl.trainer.scorer import Scorer
from agentrl.types.sample import Sample

SAMPLES = [Sample([5, 6, 7], [0, 1, 1], [1.0] * 3, [0.0] * 3) for _ in range(2)]


def score_of(value: float, experts: list[torch.Tensor | None] | None = None) -> Score:
    async def score(samples: Sequence[Sample]) -> Scores:
        return Scores([[value] * len(sample.token_ids) for sample in samples], [], routed_experts=experts)

    return score


def test_each_need_becomes_a_field_of_the_samples():
    scored = asyncio.run(Scorer({"old_logprobs": score_of(-1.0), "ref_logprobs": score_of(-2.0)})(SAMPLES))
    assert [sample.old_logprobs for sample in scored] == [[-1.0] * 3] * 2
    assert [sample.ref_logprobs for sample in scored] == [[-2.0] * 3] * 2


def test_recorded_experts_replace_those_of_the_engine_and_other_scores_keep_them():
    recorded = torch.ones(2, 1, 1)
    engine = [replace(sample, routed_experts=torch.zeros(2, 1, 1)) for sample in SAMPLES]
    scoring = {"old_logprobs": score_of(-1.0, [recorded, None]), "ref_logprobs": score_of(-2.0)}
    found = [sample.routed_experts for sample in asyncio.run(Scorer(scoring)(engine))]
    assert found[0] is recorded
    assert found[1] is None
    kept = asyncio.run(Scorer({"old_logprobs": score_of(-1.0)})(engine))
    assert all(sample.routed_experts is other.routed_experts for sample, other in zip(kept, engine, strict=True))
