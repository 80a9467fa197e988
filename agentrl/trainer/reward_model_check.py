"""How good a reward model is on held-out rows: order, calibration, and how far its scores moved."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from statistics import fmean, pstdev

from agentrl.algos.base import Algorithm
from agentrl.attempt import Group
from agentrl.backends.base import Score
from agentrl.estimates.calibration import brier_score, expected_calibration_error
from agentrl.estimates.ranking import area_under_curve, rank_correlation
from agentrl.rewards.base import probability
from agentrl.samples import Sample
from agentrl.trainer.checkpoint import recall
from agentrl.trainer.files import write_whole
from agentrl.trainer.parts import Metrics

FILE = "reward_scores.json"
"""In a checkpoint: what the model said of the held-out rows last."""

Figures = Callable[[Sequence[Sample], Sequence[float]], Metrics]
"""Credited samples, and the scores at all tokens that are read, one after another -> metrics."""


class RewardModelCheck:
    """Scores the same held-out groups each time. Stands where the validation of a policy does.

    Args:
        groups: reads them; asked once.
        score: of the model that is trained.
        figures: says how good the scores are.
    """

    def __init__(
        self, groups: Callable[[], Sequence[Group]], algorithm: Algorithm, score: Score, figures: Figures
    ) -> None:
        self._groups, self._algorithm, self._score, self._figures = groups, algorithm, score, figures
        self._samples: list[Sample] | None = None
        self._before: list[float] = []

    async def __call__(self, step: int) -> tuple[Metrics, list[Group]]:
        """(`val/...` and `reward_model/...`, no rollouts) of the weights after `step`."""
        if self._samples is None:
            groups = self._groups()
            self._samples, _ = self._algorithm.correct(self._algorithm.credit(groups, self._algorithm.samples(groups)))
        values = (await self._score(self._samples)).values
        assert values is not None  # a scalar model's
        scores = [
            score
            for sample, row in zip(self._samples, values, strict=True)
            for score in compress(row, sample.loss_mask)
        ]
        found = {f"val/{name}": value for name, value in self._figures(self._samples, scores).items()}
        found |= {f"reward_model/{name}": value for name, value in drift(self._before, scores).items()}
        self._before = scores
        return found, []

    async def save(self, checkpoint: Path) -> None:
        """See `Kept.save`."""
        write_whole(checkpoint / FILE, json.dumps(self._before))

    async def load(self, checkpoint: Path) -> None:
        """See `Kept.load`.

        Raises:
            ConfigError: its file cannot be read.
        """

        def take(scores: Sequence[float]) -> None:
            self._before = [float(score) for score in scores]

        recall(checkpoint / FILE, take)


def of_pairs(samples: Sequence[Sample], scores: Sequence[float]) -> Metrics:
    """`accuracy`: share of the pairs in the right order, `margin`, chosen less rejected; calibration of what the model
    takes the chance of its order to be, sigmoid of the margin (its `ece`; `brier` against certainty)."""
    by_group: dict[str, dict[bool, float]] = {}
    for sample, score in zip(samples, scores, strict=True):
        by_group.setdefault(sample.uid, {})[sum(sample.advantages) > 0] = score
    margins = [sides[True] - sides[False] for sides in by_group.values()]
    right = [float(margin > 0) for margin in margins]
    sure = [probability(abs(margin)) for margin in margins]
    return {
        "accuracy": fmean(right),
        "margin": fmean(margins),
        "ece": expected_calibration_error(sure, right),
        "brier": brier_score([probability(margin) for margin in margins], [1.0] * len(margins)),
        "num_pairs": float(len(margins)),
    }


def of_labels(samples: Sequence[Sample], scores: Sequence[float]) -> Metrics:
    """What `judged` says of logits and the labels that samples have."""
    return judged([probability(score) for score in scores], _labels(samples))


def judged(probabilities: Sequence[float], labels: Sequence[float]) -> Metrics:
    """`accuracy`, `ece` and `brier` of probabilities; `auc` where there are successes and failures.

    A label of 0.5 or more is a success.
    """
    good = [label >= 0.5 for label in labels]
    area = area_under_curve(probabilities, good)
    return {
        "accuracy": fmean((said >= 0.5) == came for said, came in zip(probabilities, good, strict=True)),
        "ece": expected_calibration_error(probabilities, labels),
        "brier": brier_score(probabilities, labels),
        **({} if area is None else {"auc": area}),
    }


def of_numbers(samples: Sequence[Sample], scores: Sequence[float]) -> Metrics:
    """`mse`, and `rank_correlation` where neither side is constant."""
    labels = _labels(samples)
    order = rank_correlation(scores, labels)
    return {"mse": brier_score(scores, labels), **({} if order is None else {"rank_correlation": order})}


def drift(before: Sequence[float], now: Sequence[float]) -> Mapping[str, float]:
    """`score_mean`, `score_std`, and `drift`: 1 less the rank correlation with what was said of the same before.

    0: the same order; 1: an unrelated one. None is said the first time, and where either side is constant.
    """
    order = rank_correlation(before, now) if len(before) == len(now) else None
    spread = {"score_mean": fmean(now), "score_std": pstdev(now)} if now else {}
    return spread if order is None else {**spread, "drift": 1 - order}


def _labels(samples: Sequence[Sample]) -> list[float]:
    return [label for sample in samples for label in compress(sample.returns or (), sample.loss_mask)]
