"""Metrics of a reward model on held-out rows: ranking, calibration, and drift of its scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from statistics import fmean, pstdev

from agentrl.algos.base import Algorithm
from agentrl.backends.base import Score
from agentrl.rewards.base import probability
from agentrl.run_folder.checkpoints import load_state
from agentrl.run_folder.files import write_atomically
from agentrl.stats.calibration import brier_score, expected_calibration_error
from agentrl.stats.ranking import area_under_curve, rank_correlation
from agentrl.trainer.protocols import Metrics, SaveModel
from agentrl.types.rollout import Group
from agentrl.types.sample import Sample

FILE = "reward_scores.json"
"""File in a checkpoint: the last scores of the held-out rows."""

Figures = Callable[[Sequence[Sample], Sequence[float]], Metrics]
"""Function (samples with advantages, scores) -> metrics.

The scores are one list for all samples together. The list contains one score per token with loss mask 1.
"""


class RewardModelCheck:
    """Validation of a reward model: scores the same held-out groups each time.

    Args:
        groups: reads the held-out groups; called once.
        score: scoring function of the trained model.
        figures: computes metrics of the scores.
    """

    def __init__(
        self, groups: Callable[[], Sequence[Group]], algorithm: Algorithm, score: Score, figures: Figures
    ) -> None:
        self._groups, self._algorithm, self._score, self._figures = groups, algorithm, score, figures
        self._samples: list[Sample] | None = None
        self._before: list[float] = []

    async def __call__(self, step: int) -> tuple[Metrics, list[Group]]:
        """Return (metrics `val/...` and `reward_model/...`, an empty list of groups) for the weights after `step`."""
        if self._samples is None:
            groups = self._groups()
            self._samples, _ = self._algorithm.correct(self._algorithm.credit(groups, self._algorithm.samples(groups)))
        values = (await self._score(self._samples)).values
        assert values is not None  # a reward model returns values
        scores = [
            score
            for sample, row in zip(self._samples, values, strict=True)
            for score in compress(row, sample.loss_mask)
        ]
        found = {f"val/{name}": value for name, value in self._figures(self._samples, scores).items()}
        found |= {f"reward_model/{name}": value for name, value in drift(self._before, scores).items()}
        self._before = scores
        return found, []

    async def save(self, checkpoint: Path, save_model: SaveModel) -> None:
        """See `Checkpointable.save`."""
        write_atomically(checkpoint / FILE, json.dumps(self._before))

    async def load(self, checkpoint: Path) -> None:
        """See `Checkpointable.load`.

        Raises:
            ConfigError: the file cannot be read.
        """

        def take(scores: Sequence[float]) -> None:
            self._before = [float(score) for score in scores]

        load_state(checkpoint / FILE, take)


def of_pairs(samples: Sequence[Sample], scores: Sequence[float]) -> Metrics:
    """Metrics of pairs. `accuracy`: share of pairs in the right order. `margin`: mean of chosen minus rejected score.

    The sigmoid of the margin is the model's probability that the chosen conversation is better. `ece` is the
    calibration error of the predicted order. `brier` compares the probability of the right order with 1.
    """
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
    """Metrics of logits and the samples' labels; see `judged`."""
    return judged([probability(score) for score in scores], _labels(samples))


def judged(probabilities: Sequence[float], labels: Sequence[float]) -> Metrics:
    """Return `accuracy`, `ece` and `brier` of probabilities, and `auc` if there are both successes and failures.

    A label of 0.5 or more is a success.
    """
    good = [label >= 0.5 for label in labels]
    area = area_under_curve(probabilities, good)
    return {
        "accuracy": fmean(
            (predicted >= 0.5) == correct for predicted, correct in zip(probabilities, good, strict=True)
        ),
        "ece": expected_calibration_error(probabilities, labels),
        "brier": brier_score(probabilities, labels),
        **({} if area is None else {"auc": area}),
    }


def of_numbers(samples: Sequence[Sample], scores: Sequence[float]) -> Metrics:
    """Return `mse`, and `rank_correlation` if neither scores nor labels are constant."""
    labels = _labels(samples)
    order = rank_correlation(scores, labels)
    return {"mse": brier_score(scores, labels), **({} if order is None else {"rank_correlation": order})}


def drift(before: Sequence[float], now: Sequence[float]) -> Mapping[str, float]:
    """Return `score_mean` and `score_std` of the scores `now`, and their `drift`.

    `drift` is 1 minus the rank correlation with the scores `before`: 0 means the same order, 1 an unrelated order. The
    drift is missing if `before` is empty or has another length than `now`, or if either list is constant.
    """
    order = rank_correlation(before, now) if len(before) == len(now) else None
    spread = {"score_mean": fmean(now), "score_std": pstdev(now)} if now else {}
    return spread if order is None else {**spread, "drift": 1 - order}


def _labels(samples: Sequence[Sample]) -> list[float]:
    return [label for sample in samples for label in compress(sample.returns or (), sample.loss_mask)]
