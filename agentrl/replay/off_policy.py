"""What another policy's reward would be, from rollouts that were sampled by the old one: importance sampling.

Of rollout i, w_i is the product of pi(token) / b(token) over everything the model sampled in it, pi the policy that is
asked about and b the one that sampled. Its rewards are the outcome at the end and those with an address, r_j, whose
ratio w_ij stops at their turn (Precup, Sutton & Singh 2000, "Eligibility Traces for Off-Policy Policy Evaluation").

    ordinary        mean_i of w_i * (sum of its rewards)                     unbiased; the variance may be endless
    weighted        sum_i w_i * (sum of its rewards) / sum_i w_i             biased in small samples, much steadier
    per decision    mean_i of (w_i * outcome_i + sum_j w_ij * r_j)           unbiased; no later turn adds noise to r_j

All in log space, so no ratio overflows; intervals by bootstrap over the tasks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from agentrl.estimates.base import Estimate
from agentrl.estimates.intervals import Floats, bootstrap, mean_estimate

MAX_LOG = 700.0
"""exp of more is no float64."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One rollout.

    Attributes:
        task: rollouts of one task are not independent.
        log_ratio: log w_i.
        outcome: the reward at its end.
        addressed: (log w_ij, r_j) of each reward with an address.
    """

    task: Hashable
    log_ratio: float
    outcome: float
    addressed: Sequence[tuple[float, float]] = ()

    @property
    def total(self) -> float:
        """The sum of its rewards."""
        return self.outcome + sum(value for _, value in self.addressed)


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """The estimates.

    Attributes:
        num: rollouts.
        sampled: the mean under the policy that sampled, from the same rollouts.
        ordinary, per_decision, mean_ratio: None where their ratios are beyond what a float holds.
        mean_ratio: of w_i; over endless rollouts it is 1, and what it lacks is behaviour that was not sampled.
        num_effective: of how many equally weighted rollouts the weights have the spread (Kish).
    """

    num: int
    sampled: Estimate
    ordinary: Estimate | None
    weighted: Estimate
    per_decision: Estimate | None
    mean_ratio: Estimate | None
    num_effective: float


def off_policy(episodes: Sequence[Episode], level: float = 0.95, seed: int = 0) -> OffPolicy:
    """Estimate the mean total reward of the policy that the ratios are taken to.

    Raises:
        ValueError: there are no episodes.
    """
    by_task: dict[Hashable, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_task[episode.task].append(episode)
    tasks = list(by_task.values())
    sampled = mean_estimate([[episode.total for episode in task] for task in tasks], level)
    whole = [[[(episode.log_ratio, episode.total)] for episode in task] for task in tasks]
    stepwise = [[[(episode.log_ratio, episode.outcome), *episode.addressed] for episode in task] for task in tasks]
    log_ratios = np.array([episode.log_ratio for episode in episodes])
    return OffPolicy(
        len(episodes),
        sampled,
        _mean(whole, level, seed),
        _weighted(whole, level, seed),
        _mean(stepwise, level, seed),
        _mean([[[(episode.log_ratio, 1.0)] for episode in task] for task in tasks], level, seed),
        effective_number(log_ratios),
    )


def effective_number(log_ratios: Floats) -> float:
    """Kish's (sum w)^2 / sum w^2, from log w."""
    weights = np.exp(log_ratios - log_ratios.max())
    return float(weights.sum() ** 2 / (weights**2).sum())


_Terms: TypeAlias = Sequence[Sequence[Sequence[tuple[float, float]]]]
"""(log ratio, reward) of each term of each rollout of each task."""


def _sums(terms: _Terms) -> tuple[Floats, float]:
    """For each task the sums of ratio * reward and of ratio, and its rollouts, [tasks, 3]; ratios over exp(second)."""
    top = max(log for task in terms for rollout in task for log, _ in rollout)
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
