"""Off-policy evaluation: estimate the reward of another policy from saved rollouts, by importance sampling.

pi is the policy to evaluate, b the policy that sampled. For rollout i, w_i is the product of pi(token) / b(token) over
all its sampled tokens, and R_i is its score. A turn reward r_j can use the shorter product w_ij over the tokens up to
turn j (Precup, Sutton & Singh 2000, "Eligibility Traces for Off-Policy Policy Evaluation"). This requires that the turn
rewards of every rollout sum to the rollout's score. If one rollout breaks this rule, all rollouts use w_i and R_i,
because a choice per rollout would depend on later rewards and add a bias.

    ordinary        mean_i of w_i * R_i                       unbiased; the variance may be infinite
    weighted        sum_i w_i * R_i / sum_i w_i               biased in small samples, much lower variance
    per decision    mean_i of sum_j w_ij * r_j                unbiased; no later turn adds noise to r_j

Ratios are computed in log space to avoid overflow. Intervals are bootstrapped over tasks if the effective number of
rollouts is large enough.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from agentrl.replay.base import by_task
from agentrl.stats.base import Estimate
from agentrl.stats.intervals import Floats, bootstrap, mean_estimate

MAX_LOG = 700.0
"""Largest log ratio: exp of a larger value may overflow float64."""

MIN_EFFECTIVE = 10.0
"""Estimates are unreliable if the effective number of rollouts is below this value and below half of all rollouts."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One rollout.

    Attributes:
        task: the task; rollouts of one task are not independent.
        log_ratio: log w_i.
        turn_rewards: (log w_ij, r_j) of each turn reward.
    """

    task: Hashable
    log_ratio: float
    score: float
    turn_rewards: Sequence[tuple[float, float]] = ()

    @property
    def adds_up(self) -> bool:
        """Whether the turn rewards sum to the score."""
        return math.isclose(sum(value for _, value in self.turn_rewards), self.score, rel_tol=1e-6, abs_tol=1e-9)


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """Estimates of the mean score. If `too_few` is true, only `sampled` has an interval.

    Attributes:
        num: number of rollouts.
        sampled: the mean score under the policy that sampled the rollouts: the plain mean of their scores.
        ordinary, per_decision, mean_ratio: None if a ratio overflows a float.
        mean_ratio: mean of w_i. Its expectation is 1; a lower value means that b rarely sampled the behaviour of pi.
        num_effective: effective sample size of the weights (Kish).
        by_turn: whether turn rewards sum to the score in every rollout; if not, `per_decision` equals `ordinary`.
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
        """Whether the effective number of rollouts is too small for reliable estimates."""
        return self.num_effective < min(MIN_EFFECTIVE, self.num / 2)

    @property
    def uncovered(self) -> bool:
        """Whether the mean ratio is far from 1: it overflows, is below 0.5 or above 2, or its interval excludes 1."""
        mean = self.mean_ratio
        if mean is None or not 0.5 <= mean.value <= 2:
            return True
        return mean.low is not None and mean.high is not None and not mean.low <= 1 <= mean.high


def off_policy(episodes: Sequence[Episode], level: float = 0.95, seed: int = 0) -> OffPolicy:
    """Estimate the mean score of the evaluated policy.

    Raises:
        ValueError: there are no episodes.
    """
    tasks = by_task((episode.task, episode) for episode in episodes)
    full = [[[(episode.log_ratio, episode.score)] for episode in task] for task in tasks]
    by_turn = all(episode.adds_up for episode in episodes)
    stepwise = [[episode.turn_rewards for episode in task] for task in tasks] if by_turn else full
    found = OffPolicy(
        len(episodes),
        mean_estimate([[episode.score for episode in task] for task in tasks], level),
        _mean(full, level, seed),
        _weighted(full, level, seed),
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
    """Return Kish's effective sample size, (sum w)^2 / sum w^2, from log w."""
    weights = np.exp(log_ratios - log_ratios.max())
    return float(weights.sum() ** 2 / (weights**2).sum())


_Terms: TypeAlias = Sequence[Sequence[Sequence[tuple[float, float]]]]
"""(log ratio, reward) of each term of each rollout of each task."""


def _sums(terms: _Terms) -> tuple[Floats, float]:
    """Return [tasks, 3]: sum of ratio * reward, sum of ratios, number of rollouts; and the log of the largest ratio.

    All ratios in the sums are divided by the largest ratio.
    """
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
    return float(rows[:, 0].sum()) / weight if weight else float("nan")  # NaN: all weights of a bootstrap sample are 0
