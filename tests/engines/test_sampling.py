"""Sampling against references written out here."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engines.base import SamplingParams
from agentrl.engines.torch.sampling import Draw, sample, truncate, uniforms


def naive_truncate(probs: list[float], params: SamplingParams) -> set[int]:
    """The remaining tokens, one by one and in float64."""
    order = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    if params.top_k > 0:
        order = order[: params.top_k]
    total, before, kept = math.fsum(probs[token] for token in order), 0.0, []
    for token in order:
        if params.top_p == 1 or before < params.top_p * total:
            kept.append(token)
        before += probs[token]
    return {token for token in kept if probs[token] >= params.min_p * max(probs)}


@given(
    st.lists(st.integers(1, 50), min_size=2, max_size=12),
    st.sampled_from([-1, 1, 3, 20]),
    st.sampled_from([0.11, 0.53, 0.97, 1.0]),
    st.sampled_from([0.0, 0.313, 1.0]),
)
def test_truncation_keeps_what_the_definitions_say(weights, top_k, top_p, min_p):
    probs = torch.tensor([weights], dtype=torch.float64) / sum(weights)
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    left = truncate(probs, [params])[0]
    kept = naive_truncate(probs[0].tolist(), params)
    assert {token for token, weight in enumerate(left.tolist()) if weight > 0} == kept
    assert all(left[token] == probs[0, token] for token in kept)


def test_rows_without_truncation_options_are_unchanged():
    probs = torch.softmax(torch.randn(2, 30, generator=torch.Generator().manual_seed(0)), dim=-1)
    left = truncate(probs, [SamplingParams(top_k=2, min_p=0.5), SamplingParams()])
    assert torch.equal(left[1], probs[1])
    assert (left[0] > 0).sum() <= 2


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_draws_follow_the_softmax(temperature):
    logits = torch.tensor([0.3, -1.0, 1.7, 0.0, 0.9, -0.4])
    num_draws = 20_000
    params = SamplingParams(temperature)
    rows = [Draw(params, seed, position) for seed in range(num_draws // 10) for position in range(10)]
    token_ids, logprobs = sample(logits.expand(num_draws, -1), rows)
    expected = torch.softmax(logits.double() / temperature, dim=-1).numpy() * num_draws
    chi_square = (((np.bincount(token_ids, minlength=6) - expected) ** 2) / expected).sum()
    assert chi_square < 20.5  # the 0.999 quantile for 5 degrees of freedom
    assert logprobs[0] == pytest.approx(math.log(expected[token_ids[0]] / num_draws), abs=1e-6)


def test_logprobs_are_computed_before_truncation():
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1))
    (token,), (logprob,) = sample(logits, [Draw(SamplingParams(0.7, top_p=0.3, top_k=5, min_p=0.1), 3, 0)])
    assert logprob == pytest.approx(torch.log_softmax(logits[0].double() / 0.7, dim=-1)[token].item(), abs=1e-5)


def test_temperature_zero_is_greedy_and_does_not_affect_other_rows():
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(2))
    draws = [Draw(SamplingParams(temperature), 5, 0) for temperature in (0.0, 1.0, 0.0)]
    token_ids, logprobs = sample(logits, draws)
    assert [token_ids[0], token_ids[2]] == [logits[0].argmax().item(), logits[2].argmax().item()]
    assert logprobs[0] == pytest.approx(torch.log_softmax(logits[0].double(), dim=-1).max().item(), abs=1e-5)
    assert sample(logits[1:2], draws[1:2])[0] == [token_ids[1]]


def test_draw_depends_only_on_seed_and_position():
    alone = [uniforms([seed], [position])[0] for seed, position in [(1, 0), (2, 5), (2**63 - 1, 7)]]
    assert uniforms([1, 2, 2**63 - 1], [0, 5, 7]).tolist() == alone


def test_uniforms_are_uniform_and_uncorrelated_over_seeds_and_positions():
    grid = uniforms([seed for seed in range(200) for _ in range(200)], list(range(200)) * 200).reshape(200, 200)
    assert grid.min() >= 0
    assert grid.max() < 1
    counts = np.histogram(grid, bins=20, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 43.8  # the 0.999 quantile for 19 degrees of freedom
    for left, right in ((grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 4 / math.sqrt(40_000)


def test_splitmix64_is_the_published_generator():
    """First output for state 0 (Vigna's reference, splitmix64.c): 0xE220A8397B1DCDAF."""
    from agentrl.engines.torch.sampling import _splitmix64

    assert _splitmix64(np.array([0], dtype=np.uint64))[0] == 0xE220A8397B1DCDAF


def test_non_finite_rows_are_distinguished():
    logits = torch.zeros(4, 5)
    logits[1, 2], logits[2, 0] = torch.nan, torch.inf
    logits[3, :4] = -torch.inf  # a partly masked vocabulary is allowed
    token_ids, _ = sample(logits, [Draw(SamplingParams(), 0, 0)] * 4)
    assert (token_ids[1], token_ids[2], token_ids[3]) == (-1, -1, 4)
    assert token_ids[0] >= 0
