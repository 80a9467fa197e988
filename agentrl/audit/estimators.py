"""Independent numpy versions of the advantage estimators, written from the papers, for all tokens of a step.

Axes: N trained tokens of the step, rollout after rollout; R rollouts (rows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from agentrl.audit.reading.run_info import Json
from agentrl.audit.reading.table import Integers, Truths

Floats = NDArray[np.float64]

_FLOAT32 = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Trained:
    """The trained tokens of a step.

    Attributes:
        row: [N], the rollout of each token; tokens of one rollout are contiguous.
        rewards: [R], the scores.
        valid: [R], whether a rollout is valid for training.
        groups: the rows of each group.
        penalty: [N], KL penalty subtracted from the reward of each token.
        values: [N], values of a critic; None without a critic.
        baselines: [R], rewards of greedy rollouts; NaN if there is none.
        found: [N], the saved advantages, used only where the estimator makes a random choice.
    """

    row: Integers
    rewards: Floats
    valid: Truths
    groups: Sequence[range]
    penalty: Floats
    values: Floats | None
    baselines: Floats
    found: Floats

    @cached_property
    def token_rewards(self) -> Floats:
        """[N]: the reward on a rollout's last token, 0 elsewhere, minus the token's penalty; float32 as in training."""
        rewards = np.where(self.last, self.rewards[self.row], 0.0) - self.penalty
        return rewards.astype(np.float32).astype(np.float64)

    @cached_property
    def last(self) -> Truths:
        """[N], whether a token is the last of its rollout."""
        return np.append(self.row[1:] != self.row[:-1], True)[: len(self.row)]

    @cached_property
    def scores(self) -> Floats:
        """[R], the sum of each rollout's token rewards."""
        sums: Floats = np.bincount(self.row, self.token_rewards, len(self.rewards)).astype(np.float64)
        return sums

    @cached_property
    def lengths(self) -> Floats:
        """[R], number of tokens."""
        return np.bincount(self.row, minlength=len(self.rewards)).astype(np.float64)

    def members(self) -> Iterator[Integers]:
        """The valid rows of each group; groups whose valid rows have equal scores are skipped."""
        for rows in self.groups:
            valid = np.arange(rows.start, rows.stop)[self.valid[rows.start : rows.stop]]
            if len(valid) and not all_equal(self.scores[valid]):
                yield valid

    def compared(self, formula: Callable[[Floats, Integers], Floats]) -> Floats:
        """[R]: result of `formula(scores, rows)` for each group; 0 for groups whose scores are equal."""
        result = np.zeros(len(self.rewards))
        for rows in self.members():
            result[rows] = formula(self.scores[rows], rows)
        return result

    def backwards(self, values: Floats, discount: float) -> Floats:
        """[N]: s_n = v_n + discount * s_{n+1}, within each rollout."""
        sums, following = np.zeros(len(values)), 0.0
        for index in range(len(values) - 1, -1, -1):
            following = values[index] + (0.0 if self.last[index] else discount * following)
            sums[index] = following
        return sums


Estimator = Callable[[Trained], Floats]
"""Function that returns the advantages, [N]."""


def all_equal(scores: Floats) -> bool:
    """Whether the scores are equal up to rounding."""
    return bool(np.ptp(scores) <= 8 * _FLOAT32 * np.abs(scores).max())


def whitened(values: Floats) -> Floats:
    """(v - mean) / sqrt(var + 1e-8), unbiased variance; 0 if all values are equal."""
    if len(values) < 2 or all_equal(values):
        return np.zeros(len(values))
    whitened: Floats = (values - values.mean()) / np.sqrt(values.var(ddof=1) + 1e-8)
    return whitened


def divergence(kind: str, d: Floats) -> Floats:
    """KL estimate from d = log(policy / reference). k1: d; abs: |d|; k2: d^2 / 2; k3: exp(-d) + d - 1, at most 10."""
    name = kind.removesuffix("+")
    if name in ("k1", "kl"):
        return d
    if name == "abs":
        return np.abs(d)
    if name in ("k2", "mse"):
        return d * d / 2
    cut = np.clip(-d, -20, 20)
    k3: Floats = np.minimum(np.exp(cut) - cut - 1, 10.0)
    return k3


def grpo(trained: Trained, by_std: bool = True) -> Floats:
    """(r - mean) / (std + 1e-6) over a group's valid rollouts, unbiased standard deviation.

    Rewards 1, 0, 0, 1: mean 0.5, std 0.5774, advantages 0.8660, -0.8660, -0.8660, 0.8660.
    """

    def formula(scores: Floats, rows: Integers) -> Floats:
        standardised: Floats = (scores - scores.mean()) / (scores.std(ddof=1) + 1e-6 if by_std else 1.0)
        return standardised

    return trained.compared(formula)[trained.row]


def rloo(trained: Trained) -> Floats:
    """r - mean of the group's other rollouts. Rewards 1, 0, 0.5: advantages 0.75, -0.75, 0."""
    return trained.compared(lambda r, _: r - (r.sum() - r) / (len(r) - 1))[trained.row]


def opo(trained: Trained) -> Floats:
    """r - length-weighted mean of the group. Rewards 1, 0 with 1 and 3 tokens: advantages 0.75, -0.25."""
    return trained.compared(lambda r, rows: r - np.average(r, weights=trained.lengths[rows]))[trained.row]


def reinforce_plus_plus(trained: Trained, gamma: float = 1.0) -> Floats:
    """Discounted returns, whitened over the step."""
    return whitened(trained.backwards(trained.token_rewards, gamma))


def reinforce_plus_plus_baseline(trained: Trained) -> Floats:
    """r - mean of the group, whitened over the step's tokens; 0 for groups whose scores are equal."""
    compared = trained.compared(lambda r, _: np.ones(len(r)))[trained.row] > 0
    return np.where(compared, whitened(trained.compared(lambda r, _: r - r.mean())[trained.row]), 0.0)


def remax(trained: Trained) -> Floats:
    """Undiscounted returns minus the reward of the greedy rollout; 0 if there is no greedy rollout."""
    baselines = trained.baselines.astype(np.float32).astype(np.float64)[trained.row]
    return np.nan_to_num(trained.backwards(trained.token_rewards, 1.0) - baselines)


def gae(trained: Trained, gamma: float = 1.0, lam: float = 1.0, whiten: bool = True) -> Floats:
    """d_n = r_n + gamma * V_{n+1} - V_n, A_n = d_n + gamma * lam * A_{n+1}; with `whiten`, whitened over the step."""
    assert trained.values is not None  # gae is skipped if the values were not saved
    following = np.where(trained.last, 0.0, np.append(trained.values[1:], 0.0)[: len(trained.values)])
    advantages = trained.backwards(trained.token_rewards + gamma * following - trained.values, gamma * lam)
    return whitened(advantages) if whiten else advantages


def threshold(trained: Trained, minimum: float) -> Floats:
    """Advantage 1 for a score of `minimum` or more, else 0."""
    return np.where(trained.rewards >= minimum, 1.0, 0.0)[trained.row]


def centred(trained: Trained) -> Floats:
    """r - mean of the group, also for groups whose scores are equal."""
    result = np.zeros(len(trained.rewards))
    for group in trained.groups:
        rows = np.arange(group.start, group.stop)[trained.valid[group.start : group.stop]]
        result[rows] = trained.rewards[rows] - (trained.rewards[rows].mean() if len(rows) else 0.0)
    return result[trained.row]


def pair(trained: Trained, any_lower: bool) -> Floats:
    """In each group, return 1 for one rollout with the best score, -1 for one with the worst score, 0 for the others.

    With `any_lower`, the rollout with -1 may have any score below the best. If several rollouts could be chosen, the
    saved advantages decide.

    Scores 1, 0, 1, 0: (1, -1, 0, 0) and (0, 0, 1, -1) are both correct, (1, 0, -1, 0) is wrong.
    """
    saved, result = np.zeros(len(trained.rewards)), np.zeros(len(trained.rewards))
    saved[trained.row] = trained.found
    for group in trained.groups:
        rows = np.arange(group.start, group.stop)[trained.valid[group.start : group.stop]]
        scores = trained.rewards[rows]
        if len(rows) and scores.max() > scores.min():
            lower = scores < scores.max() if any_lower else scores == scores.min()
            result[_one(rows, scores == scores.max(), saved[rows] == 1)] = 1.0
            result[_one(rows, lower, saved[rows] == -1)] = -1.0
    return result[trained.row]


def _one(rows: Integers, may: Truths, does: Truths) -> int:
    """The saved choice (`does`) if it is allowed (`may`), else the first allowed row."""
    return int(rows[may & does][0] if (may & does).any() else rows[may][0])


def estimator_of(name: str, options: Mapping[str, Json]) -> Estimator | None:
    """Return the audit's version of the estimator `name`; None if the audit has none.

    Args:
        options: configured options of all estimators; a value of None means that the option is not set.
    """
    given = {key: value for key, value in options.items() if value is not None}

    def chosen(*names: str) -> dict[str, Json]:
        return {key: given[key] for key in names if key in given}

    by_std = given.get("norm_adv_by_std") is not False
    known: dict[str, Estimator] = {
        "grpo": partial(grpo, by_std=by_std),
        "dr_grpo": partial(grpo, by_std=False),
        "rloo": rloo,
        "opo": opo,
        "reinforce_plus_plus": partial(reinforce_plus_plus, **chosen("gamma")),
        "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
        "remax": remax,
        "gae": partial(gae, **chosen("gamma", "lam", "whiten")),
        "threshold": partial(threshold, minimum=given.get("rft_threshold", 1.0)),
        "scores": centred,
        "best_worst": partial(pair, any_lower=given.get("pairing") == "best_random"),
    }
    return known.get(name)
