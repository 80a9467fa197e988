"""What another policy's reward would be, from rollouts that were sampled by the old one: importance sampling.

Of rollout i, w_i is the product of pi(token) / b(token) over everything the model sampled in it, pi the policy that is
asked about and b the one that sampled. R_i is its score, which training sees. Where the rewards with an address, r_j,
sum to it, the ratio w_ij of each may stop at its turn (Precup, Sutton & Singh 2000, "Eligibility Traces for Off-Policy
Policy Evaluation"). Elsewhere nothing says which part of the score they are, so all of it stands at the end. That is
decided for all rollouts at once: to choose one by one, by what came later, would bring a bias.

    ordinary        mean_i of w_i * R_i                       unbiased; the variance may be endless
    weighted        sum_i w_i * R_i / sum_i w_i               biased in small samples, much steadier
    per decision    mean_i of sum_j w_ij * r_j                unbiased; no later turn adds noise to r_j

All in log space, so no ratio overflows; intervals by bootstrap over the tasks, where enough rollouts are effective.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from agentrl.estimates.base import Estimate
from agentrl.estimates.intervals import Floats, bootstrap, mean_estimate
from agentrl.replay.base import by_task

MAX_LOG = 700.0
"""exp of more is no float64."""

FEW = 10.0
"""With fewer effective rollouts, and less than half of them effective, an estimate says nothing."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One rollout.

    Attributes:
        task: rollouts of one task are not independent.
        log_ratio: log w_i.
        addressed: (log w_ij, r_j) of each reward with an address.
    """

    task: Hashable
    log_ratio: float
    score: float
    addressed: Sequence[tuple[float, float]] = ()

    @property
    def adds_up(self) -> bool:
        """Whether the rewards with an address sum to the score."""
        return math.isclose(sum(value for _, value in self.addressed), self.score, rel_tol=1e-6, abs_tol=1e-9)


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """The estimates; of the other policy's none has an interval where too few rollouts are effective.

    Attributes:
        num: rollouts.
        sampled: the mean under the policy that sampled, from the same rollouts.
        ordinary, per_decision, mean_ratio: None where their ratios are beyond what a float holds.
        mean_ratio: of w_i; over endless rollouts it is 1, and what it lacks is behaviour that was not sampled.
        num_effective: of how many equally weighted rollouts the weights have the spread (Kish).
        by_turn: turn rewards sum to the score in every rollout; else `per_decision` is `ordinary`.
    """

    num: int
    sampled: Estimate
    ordinary: Estimate | None
    weighted: Estimate
    per_decision: Estimate | None
    mean_ratio: Estimate | None
    num_effective: float
    by_turn: bool

    @property
    def too_few(self) -> bool:
        """Whether so few rollouts are effective that the estimates mean nothing."""
        return self.num_effective < min(FEW, self.num / 2)

    @property
    def uncovered(self) -> bool:
        """Whether the mean ratio is far from 1: twice or half of it, or so far that its interval leaves 1 out."""
        mean = self.mean_ratio
        if mean is None or not 0.5 <= mean.value <= 2:
            return True
        return mean.low is not None and mean.high is not None and not mean.low <= 1 <= mean.high


def off_policy(episodes: Sequence[Episode], level: float = 0.95, seed: int = 0) -> OffPolicy:
    """Estimate the mean score of the policy that the ratios are taken to.

    Raises:
        ValueError: there are no episodes.
    """
    tasks = by_task((episode.task, episode) for episode in episodes)
    whole = [[[(episode.log_ratio, episode.score)] for episode in task] for task in tasks]
    by_turn = all(episode.adds_up for episode in episodes)
    stepwise = [[episode.addressed for episode in task] for task in tasks] if by_turn else whole
    found = OffPolicy(
        len(episodes),
        mean_estimate([[episode.score for episode in task] for task in tasks], level),
        _mean(whole, level, seed),
        _weighted(whole, level, seed),
        _mean(stepwise, level, seed),
        _mean([[[(episode.log_ratio, 1.0)] for episode in task] for task in tasks], level, seed),
        effective_number(np.array([episode.log_ratio for episode in episodes])),
        by_turn,
    )
    return _without_intervals(found) if found.too_few else found


def _without_intervals(found: OffPolicy) -> OffPolicy:
    return replace(
        found,
        ordinary=_value(found.ordinary),
        weighted=replace(found.weighted, low=None, high=None),
        per_decision=_value(found.per_decision),
        mean_ratio=_value(found.mean_ratio),
    )


def _value(estimate: Estimate | None) -> Estimate | None:
    return estimate and replace(estimate, low=None, high=None)


def effective_number(log_ratios: Floats) -> float:
    """Kish's (sum w)^2 / sum w^2, from log w."""
    weights = np.exp(log_ratios - log_ratios.max())
    return float(weights.sum() ** 2 / (weights**2).sum())


_Terms: TypeAlias = Sequence[Sequence[Sequence[tuple[float, float]]]]
"""(log ratio, reward) of each term of each rollout of each task."""


def _sums(terms: _Terms) -> tuple[Floats, float]:
    """For each task the sums of ratio * reward and of ratio, and its rollouts, [tasks, 3]; ratios over exp(second)."""
    top = max((log for task in terms for rollout in task for log, _ in rollout), default=0.0)
    weighed = [[(math.exp(log - top), value) for rollout in task for log, value in rollout] for task in terms]
    rows = [
        (sum(weight * value for weight, value in task), sum(weight for weight, _ in task), len(rollouts))
        for task, rollouts in zip(weighed, terms, strict=True)
    ]
    return np.array(rows, np.float64), top


def _mean(terms: _Terms, level: float, seed: int) -> Estimate | None:
    sums, top = _sums(terms)
    if top > MAX_LOG:
        return None
    scale = math.exp(top)
    return bootstrap(sums, lambda rows: scale * float(rows[:, 0].sum() / rows[:, 2].sum()), level, seed)


def _weighted(terms: _Terms, level: float, seed: int) -> Estimate:
    sums, _ = _sums(terms)
    return bootstrap(sums, _self_normalised, level, seed)


def _self_normalised(rows: Floats) -> float:
    weight = float(rows[:, 1].sum())
    return float(rows[:, 0].sum()) / weight if weight else float("nan")  # without the heavy ones nothing is left
