"""Weights that correct the bias in statistics of rollouts after infrastructure failures removed some rollouts.

A rollout with many tool calls is more likely to call a failing service than a rollout with few. So the mean number of
calls of the remaining rollouts is too low. Let n_j be the number of rollouts that made at least j calls. Let d_j be the
number of these rollouts whose j-th call failed for a reason outside the policy. Rollouts that end without such a
failure are censored observations. S(k) estimates the probability that a rollout with k calls remains (Kaplan and Meier
1958):

    S(k) = product over j <= k of (1 - d_j / n_j)

Each remaining rollout counts as 1 / S(k) rollouts (inverse probability weights; Horvitz and Thompson 1952).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate


def left_out_weights(num_calls: Sequence[int], failed: Sequence[bool]) -> list[float]:
    """Return the weight of each rollout: 1 / S(k) for a remaining rollout, and 0 for a failed one.

    Example: three rollouts have 1, 2 and 2 calls, and the second call of the third rollout failed. Then n_1 = 3,
    d_1 = 0, n_2 = 2, d_2 = 1, so S(1) = 1, S(2) = 1/2, and the weights are 1, 2, 0.

    Args:
        num_calls: calls that each rollout made, the failed call included.
        failed: for each rollout, whether its last call failed for a reason outside the policy.
    """
    made = Counter(num_calls)
    lost = Counter(number for number, out in zip(num_calls, failed, strict=True) if out)
    at_risk, shares = len(num_calls) - made[0], [1.0]
    for number in range(1, max(num_calls, default=0) + 1):
        shares.append(1 - lost[number] / at_risk)
        at_risk -= made[number]
    left = list(accumulate(shares, lambda one, other: one * other))
    return [0.0 if out else 1 / left[number] for number, out in zip(num_calls, failed, strict=True)]


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Mean of `values`; the weights are 0 or more, and not all 0."""
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
