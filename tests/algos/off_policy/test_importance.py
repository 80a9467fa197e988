from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algos.off_policy.weights import effective_share, masked, normalised, ratios, truncated

LOGS = torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64)
ROLLOUTS = torch.tensor([0, 1, 0, 1])


def test_ratios_of_tokens_and_of_rollouts():
    weights, unit = ratios("token", LOGS, ROLLOUTS)
    assert weights[unit].tolist() == pytest.approx([math.exp(each) for each in LOGS.tolist()])
    weights, unit = ratios("sequence", LOGS, ROLLOUTS)
    assert weights.tolist() == pytest.approx([math.exp(2.5), math.exp(-0.75)])
    assert weights[unit].tolist() == pytest.approx([math.exp(2.5), math.exp(-0.75)] * 2)


def test_ratios_stay_finite():
    far = torch.tensor([1e4, -1e4], dtype=torch.float64)
    for level in ("token", "sequence"):
        assert ratios(level, far, torch.tensor([0, 1]))[0].tolist() == [math.exp(20), math.exp(-20)]


def test_truncation_and_masking_of_the_worked_examples():
    assert truncated(torch.tensor([0.5, 1.0, 3.0]), 2.0).tolist() == [0.5, 1.0, 2.0]
    assert masked(torch.tensor([0.4, 0.5, 1.0, 5.0, 6.0]), 0.5, 5.0).tolist() == [0.0, 0.5, 1.0, 5.0, 0.0]


def test_normalised_weights_have_mean_1_and_zeros_stay():
    assert normalised(torch.tensor([1.0, 3.0])).tolist() == [0.5, 1.5]
    assert normalised(torch.zeros(3)).tolist() == [0, 0, 0]


def test_effective_share_is_one_for_equal_weights():
    assert effective_share(torch.tensor([0.3, 0.3, 0.3])).item() == pytest.approx(1)
    assert effective_share(torch.tensor([1.0, 0.0, 0.0, 0.0])).item() == pytest.approx(1 / 4)
    assert effective_share(torch.tensor([1.0, 2.0])).item() == pytest.approx(1.5**2 / 2.5)
    assert effective_share(torch.zeros(2)).item() == 0


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3)), min_size=1, max_size=12), st.randoms())
def test_the_order_of_tokens_does_not_matter(tokens, random):
    shuffled = random.sample(tokens, len(tokens))
    for level in ("token", "sequence"):
        assert of(level, shuffled) == pytest.approx(of(level, tokens))


def of(level: str, tokens: list[tuple[float, int]]) -> dict[tuple[float, int], float]:
    log_ratio = torch.tensor([each for each, _ in tokens], dtype=torch.float64)
    weights, unit = ratios(level, log_ratio, torch.tensor([rollout for _, rollout in tokens]))
    return dict(zip(tokens, weights[unit].tolist(), strict=True))
