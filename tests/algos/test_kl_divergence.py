from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from agentrl.algos import kl
from agentrl.config.base import KLKind
from agentrl.errors import UnknownNameError


@pytest.mark.parametrize(
    ("kinds", "value", "gradient"),
    [
        (("k1", "kl"), lambda d: d, lambda d: 1.0),
        (("abs",), abs, lambda d: math.copysign(1, d)),
        (("k2", "mse"), lambda d: d * d / 2, lambda d: d),
        (("k3", "low_var_kl"), lambda d: math.exp(-d) + d - 1, lambda d: 1 - math.exp(-d)),
    ],
)
def test_loss_and_gradient_equal_the_formula(kinds, value, gradient):
    for d in (-1.5, -0.1, 0.2, 2.0):
        for kind in kinds:
            logprob = torch.tensor(-3.0 + d, dtype=torch.float64, requires_grad=True)
            estimate = kl(kind, logprob, torch.tensor(-3.0, dtype=torch.float64))
            estimate.backward()
            assert estimate.item() == pytest.approx(value(d))
            assert logprob.grad.item() == pytest.approx(gradient(d))


def test_k1_and_k3_average_to_the_divergence_and_k2_has_its_gradient():
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.0, -0.5, 0.5, 0.4], dtype=torch.float64).log_softmax(0)
    logprobs = logits.log_softmax(0)
    probabilities = logprobs.exp()
    exact = (probabilities * (logprobs - reference)).sum()
    for kind in ("k1", "k3"):
        torch.testing.assert_close((probabilities * kl(kind, logprobs, reference)).sum(), exact)
    (exact_gradient,) = torch.autograd.grad(exact, logits, retain_graph=True)
    expected_k2 = (probabilities.detach() * kl("k2", logprobs, reference)).sum()
    torch.testing.assert_close(torch.autograd.grad(expected_k2, logits)[0], exact_gradient)


def test_k3_stays_finite():
    logprobs = torch.tensor([-1e4, 0.0, float("-inf")], requires_grad=True)
    estimate = kl("k3", logprobs, torch.tensor([0.0, -1e4, -1.0]))
    assert estimate.tolist() == [10.0, 10.0, 10.0]
    estimate.sum().backward()
    assert logprobs.grad.tolist() == [0, 0, 0]


def test_unknown_kl_kind_is_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'low_var_kl'"):
        kl("low_var", torch.zeros(1), torch.zeros(1))


@pytest.mark.parametrize("kind", ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"])
def test_straight_through_has_its_own_value_and_the_gradient_of_k2(kind):
    for d in (-30.0, -1.5, 0.0, 0.2, 2.0):
        logprob = torch.tensor(-3.0 + d, dtype=torch.float64, requires_grad=True)
        reference = torch.tensor(-3.0, dtype=torch.float64)
        estimate = kl(f"{kind}+", logprob, reference)
        estimate.backward()
        assert estimate.item() == kl(kind, logprob, reference).item()
        assert logprob.grad.item() == pytest.approx(d)


def test_all_configurable_kl_kinds_exist():
    for kind in get_args(KLKind):
        assert kl(kind, torch.zeros(2), torch.zeros(2)).tolist() == [0, 0]
