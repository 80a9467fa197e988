from __future__ import annotations

import math
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algos.off_policy.weights import DIVERGENCES, kept
from agentrl.config.correction_bounds import REJECTIONS, Bounds, Rejection

FORMULAS = {"k1": lambda x: -x, "k2": lambda x: x * x / 2, "k3": lambda x: math.exp(x) - 1 - x}
GATHER = {"seq_sum": sum, "seq_mean": fmean, "seq_max": max}


def by_hand(rejection: Rejection, tokens: list[tuple[float, int]]) -> list[bool]:
    level, name = rejection.name.rsplit("_", 1)
    values = [FORMULAS[name](log_ratio) for log_ratio, _ in tokens]
    if level != "token":
        of = {
            rollout: GATHER[level]([v for v, (_, r) in zip(values, tokens, strict=True) if r == rollout])
            for _, rollout in tokens
        }
        values = [of[rollout] for _, rollout in tokens]
    lower, upper = rejection.bounds
    if lower is None:
        return [value <= upper for value in values]
    return [math.log(lower) <= value <= math.log(upper) for value in values]


def stays(rejection: Rejection, tokens: list[tuple[float, int]]) -> list[bool]:
    log_ratio = torch.tensor([each for each, _ in tokens], dtype=torch.float64)
    return kept(rejection, log_ratio, torch.tensor([rollout for _, rollout in tokens])).tolist()


@pytest.mark.parametrize("name", REJECTIONS)
@given(st.lists(st.tuples(st.floats(-3, 3), st.integers(0, 2)), min_size=1, max_size=10))
def test_every_rejection_equals_its_formula(name, tokens):
    numbers = {rollout: number for number, rollout in enumerate(dict.fromkeys(r for _, r in tokens))}
    tokens = [(round(log_ratio, 2), numbers[rollout]) for log_ratio, rollout in tokens]  # avoid values on the bounds
    rejection = Rejection(name, Bounds(0.4567, 1.7654) if name.endswith("k1") else Bounds(None, 0.30303))
    assert stays(rejection, tokens) == by_hand(rejection, tokens)


def test_rejections_equal_worked_examples():
    tokens = [(0.0, 0), (1.0, 0), (0.1, 1)]
    assert stays(Rejection("token_k1", Bounds(0.5, 2.0)), tokens) == [True, False, True]
    assert stays(Rejection("seq_mean_k2", Bounds(None, 0.2)), tokens) == [False, False, True]  # (0 + 0.5) / 2
    assert stays(Rejection("seq_max_k3", Bounds(None, 0.8)), tokens) == [True, True, True]  # e - 2


def test_the_bounds_of_k1_are_of_behaviour_over_policy():
    # the policy finds the token 3 times as likely: behaviour / policy is 1/3
    assert stays(Rejection("token_k1", Bounds(0.5, 4.0)), [(math.log(3), 0)]) == [False]
    assert stays(Rejection("token_k1", Bounds(0.25, 2.0)), [(math.log(3), 0)]) == [True]


@pytest.mark.parametrize("name", REJECTIONS)
def test_nan_ratios_are_rejected(name):
    bounds = Bounds(0.5, 2.0) if name.endswith("k1") else Bounds(None, 1.0)
    assert stays(Rejection(name, bounds), [(float("nan"), 0), (0.0, 1)]) == [False, True]


def test_small_divergences_are_not_lost_to_rounding():
    small = torch.tensor([1e-5], dtype=torch.float32)
    assert DIVERGENCES["k3"](small.double()).item() == pytest.approx(5e-11, rel=1e-4)
