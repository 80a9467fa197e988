from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algos import preference_loss, ranking_loss
from agentrl.algos.options import needs_of
from agentrl.algos.preference.losses import PREFERENCE_LOSSES, pair_losses
from agentrl.errors import ConfigError, UnknownNameError

BETA = 0.3


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def pairwise(w: float, l: float, _: float, __: float) -> float:  # noqa: E741  # the paper's letters
    return -log_sigmoid(BETA * (w - l))


def dpo(w: float, l: float, ref_w: float, ref_l: float) -> float:  # noqa: E741
    """Equation 7 of the paper."""
    return -log_sigmoid(BETA * (w - ref_w) - BETA * (l - ref_l))


def smoothed(w: float, l: float, ref_w: float, ref_l: float) -> float:  # noqa: E741
    d = BETA * (w - ref_w - l + ref_l)
    return -0.9 * log_sigmoid(d) - 0.1 * log_sigmoid(-d)


def ipo(w: float, l: float, ref_w: float, ref_l: float) -> float:  # noqa: E741
    """Equation 17 of the paper."""
    return (w - ref_w - l + ref_l - 1 / (2 * BETA)) ** 2


def draw_pairs(seed: int, pairs: int = 5) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [-10 * torch.rand(pairs, dtype=torch.float64, generator=generator) for _ in range(4)]


@pytest.mark.parametrize(
    ("name", "options", "paper"),
    [
        ("pairwise", {}, pairwise),
        ("dpo", {}, dpo),
        ("dpo", {"label_smoothing": 0.1}, smoothed),
        ("ipo", {}, ipo),
    ],
)
def test_value_and_gradient_are_the_papers(name, options, paper):
    chosen, rejected, ref_chosen, ref_rejected = draw_pairs(0)
    references = {"ref_chosen_logps": ref_chosen, "ref_rejected_logps": ref_rejected}
    for side in (chosen, rejected):
        side.requires_grad_()
    losses, _ = pair_losses(name, chosen, rejected, **references, beta=BETA, **options)
    numbers = list(zip(*(each.tolist() for each in (chosen, rejected, ref_chosen, ref_rejected)), strict=True))
    assert losses.tolist() == pytest.approx([paper(*each) for each in numbers])
    loss, _ = preference_loss(name, chosen, rejected, **references, beta=BETA, **options)
    assert loss.item() == pytest.approx(losses.mean().item())
    by_chosen, by_rejected = torch.autograd.grad(loss, (chosen, rejected))
    for place, (w, l, *reference) in enumerate(numbers):  # noqa: E741
        slopes = (
            (paper(w + 1e-6, l, *reference) - paper(w - 1e-6, l, *reference)) / 2e-6,
            (paper(w, l + 1e-6, *reference) - paper(w, l - 1e-6, *reference)) / 2e-6,
        )
        found = (by_chosen[place].item(), by_rejected[place].item())
        assert found == pytest.approx([slope / len(numbers) for slope in slopes], abs=1e-8)


def test_metrics_are_implicit_rewards():
    chosen, rejected = torch.tensor([-1.0, -4.0], requires_grad=True), torch.tensor([-2.0, -3.0])
    ref_chosen, ref_rejected = torch.tensor([-1.5, -3.0]), torch.tensor([-1.0, -2.0])
    references = {"ref_chosen_logps": ref_chosen, "ref_rejected_logps": ref_rejected}
    for name in ("dpo", "ipo"):
        _, metrics = preference_loss(name, chosen, rejected, **references, beta=2.0)
        assert {key: value.item() for key, value in metrics.items()} == {
            "chosen_rewards": 2 * (0.5 - 1) / 2,
            "rejected_rewards": 2 * (-1 - 1) / 2,
            "margin": 1.5 - 0.0,
            "accuracy": 0.5,
        }
        assert not any(value.requires_grad for value in metrics.values())
    _, metrics = preference_loss("pairwise", chosen, rejected, beta=2.0)
    assert metrics["chosen_rewards"].item() == pytest.approx(-5)


def test_batch_without_pairs_has_zero_loss_with_gradient():
    nothing = torch.zeros(0, requires_grad=True)
    loss, metrics = preference_loss("pairwise", nothing, nothing, beta=0.1)
    loss.backward()
    assert loss.item() == 0
    assert metrics["accuracy"] == 0


def test_losses_that_need_a_reference_declare_it():
    assert [name for name in PREFERENCE_LOSSES.names() if needs_of(PREFERENCE_LOSSES.get(name))] == ["dpo", "ipo"]
    ones = torch.ones(1)
    for name in ("dpo", "ipo"):
        with pytest.raises(ConfigError, match="needs the logps of a reference policy"):
            preference_loss(name, ones, ones, beta=0.1)
    with pytest.raises(ConfigError, match="'smoothing': did you mean 'label_smoothing'"):
        preference_loss("pairwise", ones, ones, beta=0.1, smoothing=0.1)
    with pytest.raises(UnknownNameError, match="valid: dpo, ipo, pairwise"):
        preference_loss("kto", ones, ones, beta=0.1)


def plackett_luce(logps: list[float], scores: list[float]) -> float:
    """The loss of one group, term by term."""
    terms = []
    for own, score in zip(logps, scores, strict=True):
        below = [other for other, lower in zip(logps, scores, strict=True) if lower < score]
        if below:
            total = math.exp(BETA * own) + sum(math.exp(BETA * other) for other in below)
            terms.append(-math.log(math.exp(BETA * own) / total))
    return sum(terms) / len(terms)


@settings(max_examples=40)
@given(
    groups=st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=5), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_ranking_equals_plackett_luce_in_any_order(groups, order: random.Random):
    rows = [(number, score, -5 * order.random()) for number, scores in enumerate(groups) for score in scores]
    by_group = [[row for row in rows if row[0] == number] for number in range(len(groups))]
    telling = [group for group in by_group if len({score for _, score, _ in group}) > 1]
    expected = [plackett_luce([row[2] for row in group], [row[1] for row in group]) for group in telling]
    order.shuffle(rows)
    numbers, scores, logps = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    losses, metrics = ranking_loss(logps, scores, numbers.long(), beta=BETA)
    assert losses.tolist() == pytest.approx(expected)
    assert metrics["accuracy"].shape == metrics["margin"].shape == losses.shape


def test_ranking_of_two_equals_pairwise():
    logps = torch.tensor([-3.0, -1.0], dtype=torch.float64, requires_grad=True)
    ranked, metrics = ranking_loss(logps, torch.tensor([1.0, 0.0]), torch.tensor([9, 9]), beta=BETA)
    paired, _ = pair_losses("pairwise", logps[:1], logps[1:], beta=BETA)
    torch.testing.assert_close(ranked, paired)
    torch.testing.assert_close(torch.autograd.grad(ranked.sum(), logps), torch.autograd.grad(paired.sum(), logps))
    assert metrics["accuracy"].tolist() == [0]
    assert metrics["margin"].item() == pytest.approx(BETA * -2)


def test_scores_that_differ_by_rounding_are_equal():
    logps = torch.zeros(2, requires_grad=True)
    losses, _ = ranking_loss(logps, torch.tensor([0.1 + 0.2, 0.3], dtype=torch.float64), torch.zeros(2).long(), beta=1)
    assert len(losses) == 0
    losses.sum().backward()


def test_ranking_gradient_equals_its_formula():
    def loss(logps: torch.Tensor) -> torch.Tensor:
        return ranking_loss(logps, torch.tensor([2.0, 0.0, 1.0, 1.0]), torch.zeros(4).long(), beta=BETA)[0]

    logps = torch.tensor([-1.0, -2.0, -0.5, -3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (logps,))
