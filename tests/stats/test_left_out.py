"""Weights of rollouts that infrastructure failures left: examples by hand, and a simulation with known truth."""

from __future__ import annotations

from random import Random

import pytest

from agentrl.stats.left_out import left_out_weights, weighted_mean


def test_the_example_of_the_docstring():
    assert left_out_weights([1, 2, 2], [False, False, True]) == [1.0, 2.0, 0.0]


def test_without_failures_all_rollouts_count_once():
    assert left_out_weights([0, 3, 1], [False] * 3) == [1.0] * 3
    assert left_out_weights([], []) == []


def test_failures_that_do_not_depend_on_calls_change_no_mean():
    """Every rollout makes three calls; one in four fails at its second call."""
    weights = left_out_weights([3, 3, 3, 2], [False, False, False, True])
    assert weights == pytest.approx([4 / 3] * 3 + [0])
    assert weighted_mean([3, 3, 3, 2], weights) == 3


@pytest.mark.parametrize("seed", range(3))
def test_estimate_finds_the_mean_number_of_calls_without_failures(seed):
    """0 to 20 calls, 5 % of the calls fail: what is left makes 7.9 calls, without failures there are 10."""
    random = Random(seed)
    wanted = [random.randrange(21) for _ in range(20_000)]
    failures = [next((j for j in range(1, k + 1) if random.random() < 0.05), None) for k in wanted]
    calls = [k if failure is None else failure for k, failure in zip(wanted, failures, strict=True)]
    failed = [failure is not None for failure in failures]
    kept = [k for k, out in zip(calls, failed, strict=True) if not out]
    truth = sum(wanted) / len(wanted)
    assert sum(kept) / len(kept) < truth - 1.5
    assert weighted_mean(calls, left_out_weights(calls, failed)) == pytest.approx(truth, abs=0.2)
