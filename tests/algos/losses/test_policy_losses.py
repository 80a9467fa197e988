"""Every policy loss against its paper, written in plain Python, and its gradient against finite differences."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.algos import policy_loss
from agentrl.algos.losses.registry import POLICY_LOSSES
from agentrl.algos.options import scope_of
from agentrl.errors import ConfigError

# per token: (log p, log p with stopped gradient, log p_old, advantage)
Sequence = list[tuple[float, float, float, float]]
MASK = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 1, 1, 1, 1], [1, 0, 1, 1, 0]]).bool()
ROLLOUTS = torch.tensor([7, 7, 2, 5])  # the first rollout has two rows


def draw_batch(seed: int, same_advantage: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Returns log p, log p_old and advantages; [4, 5] float64."""
    draw = random.Random(seed)
    rows = [[-draw.expovariate(1.0) - 0.05 for _ in range(5)] for _ in range(4)]
    old = [[min(-0.01, value + draw.gauss(0, 0.5)) for value in row] for row in rows]
    per_rollout = {number: draw.gauss(0, 1) for number in (7, 2, 5)}
    advantages = [
        [per_rollout[int(number)] if same_advantage else draw.gauss(0, 1) for _ in range(5)] for number in ROLLOUTS
    ]
    return tuple(torch.tensor(each, dtype=torch.float64) for each in (rows, old, advantages))  # type: ignore[return-value]  # three


def sequences(logprobs: Tensor, frozen: Tensor, old: Tensor, advantages: Tensor) -> list[Sequence]:
    found: dict[int, Sequence] = {}
    for row, number in enumerate(ROLLOUTS.tolist()):
        for token in range(5):
            if MASK[row, token]:
                numbers = [float(each[row, token]) for each in (logprobs, frozen, old, advantages)]
                found.setdefault(number, []).append(tuple(numbers))  # type: ignore[arg-type]  # four
    return list(found.values())


def token_mean(loss: Callable[[float, float, float, float], float]) -> Callable[[list[Sequence]], float]:
    def mean(rollouts: list[Sequence]) -> float:
        losses = [loss(*token) for rollout in rollouts for token in rollout]
        return sum(losses) / len(losses)

    return mean


def clipped(ratio: float, advantage: float, low: float, high: float) -> float:
    return -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def gspo(rollouts: list[Sequence]) -> float:
    """Equation 5 of the paper, negated, with s_i of equation 7."""
    total = 0.0
    for tokens in rollouts:
        s = math.exp(sum(new - old for new, _, old, _ in tokens) / len(tokens))
        total += clipped(s, tokens[0][3], 0.1, 0.2)
    return total / len(rollouts)


def gmpo(rollouts: list[Sequence]) -> float:
    """A times the |o|-th root of the product of ratios.

    Each ratio is clipped to (e^-0.3, e^0.4) on the side that A moves to.
    """
    total = 0.0
    for tokens in rollouts:
        product, sign = 1.0, math.copysign(1, tokens[0][3])
        for new, _, old, _ in tokens:
            ratio = math.exp(new - old)
            inside = min(max(ratio, math.exp(-0.3)), math.exp(0.4))
            product *= min(ratio**sign, inside**sign) ** sign
        total -= tokens[0][3] * product ** (1 / len(tokens))
    return total / len(rollouts)


def cispo(new: float, frozen: float, old: float, advantage: float) -> float:
    return -min(max(math.exp(frozen - old), 0.8), 1.3) * advantage * new


def sapo(new: float, _: float, old: float, advantage: float) -> float:
    tau = 1.0 if advantage > 0 else 1.5
    return -advantage * 4 / tau / (1 + math.exp(-tau * (math.exp(new - old) - 1)))


def dppo_tv(new: float, frozen: float, old: float, advantage: float) -> float:
    moved = math.exp(frozen) - math.exp(old)
    left = moved > 0.06 if advantage > 0 else moved < -0.05
    return 0.0 if left else -min(math.exp(frozen - old), 1.3) * advantage * new


def dppo_kl(new: float, frozen: float, old: float, advantage: float) -> float:
    p, q = math.exp(old), math.exp(frozen)
    divergence = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    left = divergence > 0.03 and (q > p) == (advantage > 0)
    return 0.0 if left else -min(math.exp(frozen - old), 20) * advantage * new


def dro(new: float, _: float, old: float, advantage: float) -> float:
    return -new * advantage + 0.15 * (new - old) ** 2


def reinforce(new: float, _: float, __: float, advantage: float) -> float:
    return -new * advantage


def covariances(rollouts: list[Sequence]) -> list[tuple[float, tuple[float, float, float, float]]]:
    tokens = [token for rollout in rollouts for token in rollout]
    mean_p, mean_a = (sum(token[place] for token in tokens) / len(tokens) for place in (1, 3))
    return [((token[1] - mean_p) * (token[3] - mean_a), token) for token in tokens]


def clip_cov(rollouts: list[Sequence]) -> float:
    """With a share of 1 every candidate is clipped, so nothing is random."""
    total = 0.0
    for covariance, (new, frozen, old, advantage) in covariances(rollouts):
        ratio = math.exp(frozen - old)
        inside = clipped(ratio, advantage, 0.2, 0.3) == -ratio * advantage
        held = 0.1 < covariance < 2 and inside
        total += 0.0 if held else clipped(math.exp(new - old), advantage, 0.2, 0.3)
    return total / len(covariances(rollouts))


def kl_cov(rollouts: list[Sequence]) -> float:
    """The two tokens (a fifth of 12 is 2.4) with the largest covariance pay a penalty on their log-ratio."""
    ranked = sorted(covariances(rollouts), reverse=True)
    total = 0.0
    for rank, (_, (new, _, old, advantage)) in enumerate(ranked):
        total += -advantage * math.exp(new - old) + (0.7 * abs(new - old) if rank < int(0.2 * len(ranked)) else 0.0)
    return total / len(ranked)


LOSSES = [
    ("gspo", {"clip_ratio_low": 0.1, "clip_ratio_high": 0.2}, "seq-mean-token-mean", gspo),
    ("gmpo", {"clip_ratio_low": 0.3, "clip_ratio_high": 0.4}, "seq-mean-token-mean", gmpo),
    ("cispo", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3}, "token-mean", token_mean(cispo)),
    ("sapo", {"tau_pos": 1.0, "tau_neg": 1.5}, "token-mean", token_mean(sapo)),
    (
        "dppo",
        {"clip_ratio_low": 0.05, "clip_ratio_high": 0.06, "clip_ratio_c": 1.3},
        "token-mean",
        token_mean(dppo_tv),
    ),
    ("dppo_kl", {"clip_ratio_low": 0.03, "clip_ratio_high": 0.03}, "token-mean", token_mean(dppo_kl)),
    ("dro", {"dro_beta": 0.3}, "token-mean", token_mean(dro)),
    ("gpg", {}, "token-mean", token_mean(reinforce)),
    (
        "clip_cov",
        {"clip_ratio_high": 0.3, "clip_cov_ratio": 1.0, "clip_cov_lb": 0.1, "clip_cov_ub": 2.0},
        "token-mean",
        clip_cov,
    ),
    ("kl_cov", {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.7}, "token-mean", kl_cov),
]


def loss_of(
    name: str, batch: tuple[Tensor, Tensor, Tensor], options: dict[str, float], aggregation: str = "token-mean"
) -> tuple[Tensor, dict[str, Tensor]]:
    weights = {"weights": None, "denominator": None}
    if aggregation == "seq-mean-token-mean":
        counts = {number: int(MASK[number == ROLLOUTS].sum()) for number in (7, 2, 5)}
        weights = {"weights": [1 / counts[int(number)] for number in ROLLOUTS], "denominator": 3.0}
    logprobs, old, advantages = batch
    return policy_loss(
        name, logprobs, old, advantages, MASK, rollouts=ROLLOUTS, aggregation=aggregation, **weights, **options
    )


@pytest.mark.parametrize(("name", "options", "aggregation", "paper"), LOSSES, ids=[each[0] for each in LOSSES])
@pytest.mark.parametrize("seed", range(5))
def test_value_and_gradient_are_the_papers(name, options, aggregation, paper, seed):
    logprobs, old, advantages = draw_batch(seed, same_advantage=aggregation != "token-mean")
    frozen = logprobs.clone()
    logprobs.requires_grad_()
    loss, metrics = loss_of(name, (logprobs, old, advantages), options, aggregation)
    assert loss.item() == pytest.approx(paper(sequences(logprobs.detach(), frozen, old, advantages)), rel=1e-9)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    for row, token in MASK.nonzero().tolist():
        step = torch.zeros_like(frozen)
        step[row, token] = 1e-6
        up, down = (paper(sequences(frozen + each, frozen, old, advantages)) for each in (step, -step))
        assert gradient[row, token].item() == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-8)
    assert not gradient[~MASK].any()
    assert all(value.isfinite() and not value.requires_grad for value in metrics.values())


@pytest.mark.parametrize("name", POLICY_LOSSES.names())
def test_values_off_the_mask_are_ignored(name):
    logprobs, old, advantages = draw_batch(0)
    loss, _ = loss_of(name, (logprobs, old, advantages), {})
    spoilt = logprobs.masked_fill(~MASK, -torch.inf).requires_grad_()
    other, _ = loss_of(name, (spoilt, old.masked_fill(~MASK, torch.nan), advantages.masked_fill(~MASK, 0)), {})
    other.backward()
    assert other.item() == loss.item()
    assert spoilt.grad is not None
    assert spoilt.grad.isfinite().all()


@settings(max_examples=40)
@given(data=st.data(), name=st.sampled_from(POLICY_LOSSES.names()))
def test_the_order_of_rows_does_not_matter(data: st.DataObject, name: str):
    order = torch.tensor(data.draw(st.permutations(range(4))))
    logprobs, old, advantages = draw_batch(data.draw(st.integers(0, 3)))
    # several equal tokens, so that the sort has ties
    logprobs, old, advantages = logprobs.round(decimals=0) - 0.5, old.round(decimals=1) - 0.1, advantages.sign()
    losses = []
    for rows in (torch.arange(4), order):
        read = logprobs[rows].requires_grad_()
        loss, _ = policy_loss(
            name,
            read,
            old[rows],
            advantages[rows],
            MASK[rows],
            rollouts=ROLLOUTS[rows],
            **({"clip_cov_lb": 0.01} if name == "clip_cov" else {}),
        )
        (gradient,) = torch.autograd.grad(loss, read)
        losses.append((loss.detach(), gradient[rows.argsort()]))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in POLICY_LOSSES.names() if scope_of(POLICY_LOSSES.get(name)) == "row"])
def test_losses_over_rows_add_up(name):
    logprobs, old, advantages = draw_batch(1)
    whole, _ = loss_of(name, (logprobs, old, advantages), {})
    rows = [
        policy_loss(
            name, *(each[[row]] for each in (logprobs, old, advantages, MASK)), weights=[1.0], denominator=12.0
        )[0]
        for row in range(4)
    ]
    torch.testing.assert_close(sum(rows), whole)


@pytest.mark.parametrize("name", ["gspo", "gmpo"])
def test_rollout_in_several_rows_equals_one_row(name):
    draw = random.Random(0)
    logprobs, old = (torch.tensor([[-draw.random() for _ in range(6)]], dtype=torch.float64) for _ in range(2))
    advantages, ones = torch.full_like(logprobs, 0.7), torch.ones(2, 3)
    whole, _ = policy_loss(name, logprobs, old, advantages, torch.ones(1, 6))
    cut = [each.view(2, 3) for each in (logprobs, old, advantages)]
    torch.testing.assert_close(policy_loss(name, *cut, ones, rollouts=torch.tensor([4, 4]))[0], whole)
    assert not torch.isclose(policy_loss(name, *cut, ones)[0], whole)
    assert scope_of(POLICY_LOSSES.get(name)) == "rollout"


@pytest.mark.parametrize("name", [name for name in POLICY_LOSSES.names() if name not in ("sft", "dro")])
def test_on_policy_gradient_of_each_loss_equals_reinforce(name):
    logprobs, _, advantages = draw_batch(2, same_advantage=True)
    logprobs.requires_grad_()
    loss, _ = loss_of(
        name,
        (logprobs, logprobs.detach().clone(), advantages),
        {"clip_cov_lb": 4.0} if name == "clip_cov" else {},
        "seq-mean-token-mean",
    )
    expected, _ = loss_of("reinforce", (logprobs, logprobs.detach(), advantages), {}, "seq-mean-token-mean")
    torch.testing.assert_close(*(torch.autograd.grad(each, logprobs)[0] for each in (loss, expected)))


def test_clip_cov_holds_its_share_the_same_in_every_call():
    generator = torch.Generator().manual_seed(0)
    logprobs, old, advantages = (torch.randn(40, 50, generator=generator) for _ in range(3))
    mask = torch.ones(40, 50)
    options = {"clip_cov_ratio": 0.01, "clip_cov_lb": 0.5, "clip_cov_ub": 2.0}
    found = [policy_loss("clip_cov", logprobs, logprobs, advantages, mask, **options) for _ in range(2)]
    assert found[0][1]["cov_frac"].item() == pytest.approx(20 / 2000)
    assert found[0][0].equal(found[1][0])
    _, metrics = policy_loss("clip_cov", logprobs, old, advantages, mask, **options)
    assert metrics["cov_frac"].item() == pytest.approx(20 / 2000)
    assert metrics["pg_clipfrac"] > 0


def test_a_gate_and_a_trust_region_have_metrics():
    logprobs = torch.tensor([[math.log(0.5), math.log(0.9)]])
    old = torch.tensor([[math.log(0.5), math.log(0.5)]])
    ones = torch.ones(1, 2)
    _, metrics = policy_loss("dppo", logprobs, old, ones, ones)
    assert metrics["pg_clipfrac"].item() == 0.5
    _, metrics = policy_loss("sapo", logprobs, old, ones, ones)
    assert 0.5 < metrics["gate_mean"] < 1


def test_invalid_loss_options_are_refused():
    ones = torch.ones(1, 1)
    with pytest.raises(ConfigError, match="no divergence 'tw': valid: kl, tv"):
        policy_loss("dppo", ones, ones, ones, ones, divergence="tw")
    with pytest.raises(ConfigError, match="clip_cov_lb must be below clip_cov_ub"):
        policy_loss("clip_cov", ones, ones, ones, ones, clip_cov_lb=5.0)
    with pytest.raises(ConfigError, match="'tau': did you mean 'tau_"):
        policy_loss("sapo", ones, ones, ones, ones, tau=1.0)
