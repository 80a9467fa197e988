from __future__ import annotations

import random

import pytest
import torch

from agentrl.algos import explained_variance, value_loss
from agentrl.algos.losses.aggregation import MODES, aggregation_weights

MASK = torch.tensor([[1, 0, 1], [0, 1, 1]]).bool()


def draw(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, dtype=torch.float64, generator=generator) for _ in range(3)]


def paper(value: float, target: float, old: float, reach: float) -> float:
    bounded = min(max(value, old - reach), old + reach)
    return max((value - target) ** 2, (bounded - target) ** 2) / 2


@pytest.mark.parametrize("seed", range(5))
def test_value_and_gradient_are_the_formulas(seed):
    values, returns, old = draw(seed)
    values.requires_grad_()
    loss, metrics = value_loss(values, returns, old, MASK, cliprange_value=0.4)
    places = MASK.nonzero().tolist()
    numbers = [[float(each[row, token]) for each in (values.detach(), returns, old)] for row, token in places]
    assert loss.item() == pytest.approx(sum(paper(*each, 0.4) for each in numbers) / len(numbers))
    (gradient,) = torch.autograd.grad(loss, values)
    for (row, token), (value, *others) in zip(places, numbers, strict=True):
        slope = (paper(value + 1e-6, *others, 0.4) - paper(value - 1e-6, *others, 0.4)) / 2e-6
        assert gradient[row, token].item() == pytest.approx(slope / len(numbers), abs=1e-8)
    assert not gradient[~MASK].any()
    assert metrics["vpred_mean"].item() == pytest.approx(sum(each[0] for each in numbers) / len(numbers))


def test_value_clip_selects_the_larger_loss():
    #              in reach  beyond, towards  beyond, away
    values = torch.tensor([[0.4, 1.0, 1.0]], requires_grad=True)
    returns, old = torch.tensor([[2.0, 2.0, -2.0]]), torch.zeros(1, 3)
    loss, metrics = value_loss(values, returns, old, torch.ones(1, 3), cliprange_value=0.5)
    loss.backward()
    assert values.grad is not None
    assert values.grad[0].tolist() == pytest.approx([(0.4 - 2) / 3, 0.0, 3 / 3])
    assert metrics["vf_clipfrac"].item() == pytest.approx(1 / 3)


def test_without_old_values_nothing_is_clipped():
    values, returns, _ = draw(0)
    loss, metrics = value_loss(values, returns, None, MASK)
    assert loss.item() == pytest.approx(((values - returns)[MASK] ** 2).mean().item() / 2)
    assert metrics["vf_clipfrac"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_a_mini_batch_add_up(mode):
    values, returns, old = draw(3)
    weights, denominator = aggregation_weights(mode, MASK.sum(1).tolist(), None, 3)
    whole, _ = value_loss(values, returns, old, MASK, aggregation=mode, norm_length=3)
    rows = [
        value_loss(
            *(each[[row]] for each in (values, returns, old, MASK)),
            aggregation=mode,
            weights=[weights[row]],
            denominator=denominator,
        )[0]
        for row in range(2)
    ]
    torch.testing.assert_close(sum(rows), whole)


def test_explained_variance_ignores_a_constant_offset():
    drawn = random.Random(0)
    returns = torch.tensor([[drawn.gauss(3, 2) for _ in range(200)]], dtype=torch.float64)
    mask = torch.ones(1, 200)
    assert explained_variance(returns, returns, mask) == 1
    assert explained_variance(returns + 5, returns, mask) == pytest.approx(1)  # a constant offset adds no variance
    assert explained_variance(torch.ones_like(returns), returns, mask) == pytest.approx(0)
    assert explained_variance(returns.mean() + (returns - returns.mean()) / 2, returns, mask) == pytest.approx(0.75)
    assert explained_variance(-returns, returns, mask) < 0
    noisy = torch.cat([returns, returns * 1e9], dim=1)
    assert explained_variance(noisy, noisy.roll(1), torch.cat([mask, mask * 0], dim=1)) < 0.5


def test_explained_variance_of_constant_returns_is_0():
    assert explained_variance(torch.randn(1, 3), torch.ones(1, 3), torch.ones(1, 3)) == 0
    assert explained_variance(torch.randn(1, 3), torch.randn(1, 3), torch.zeros(1, 3)) == 0
