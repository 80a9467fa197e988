"""Sampling of tokens from logits. Each draw depends only on (seed, position), not on other rows.

Axes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentrl.engines.base import SamplingParams


@dataclass(frozen=True, slots=True)
class Draw:
    """Sampling parameters of one row; `seed` and `position` determine the random number."""

    sampling: SamplingParams
    seed: int
    position: int


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """[R] numbers in [0, 1) with 53 random bits: splitmix64 (Steele et al., 2014) of the seed, then of the position."""
    mixed_seeds = _splitmix64(np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64))
    bits = _splitmix64(mixed_seeds ^ np.array(positions, dtype=np.uint64))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix64(state: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    state = state + np.uint64(0x9E3779B97F4A7C15)  # intended: array arithmetic wraps around
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def sample(logits_RV: Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
    """Sample one token per row; return tokens and log-probabilities under softmax(logits / temperature).

    The log-probabilities are computed before truncation (top-k, top-p, min-p). A row with NaN log-probabilities returns
    token -1. Temperature 0 selects the most likely token and returns its log-probability at temperature 1.
    """
    params = [draw.sampling for draw in draws]
    greedy = [sampling.temperature == 0 for sampling in params]
    temperatures_R = logits_RV.new_tensor([s.temperature or 1.0 for s in params], dtype=torch.float32)
    logprobs_RV = torch.log_softmax(logits_RV.float() / temperatures_R[:, None], dim=-1)
    if all(greedy):
        tokens_R = logprobs_RV.argmax(dim=-1)
    else:
        uniforms_R = torch.from_numpy(uniforms([d.seed for d in draws], [d.position for d in draws]))
        tokens_R = _invert(truncate(logprobs_RV.exp(), params), uniforms_R.to(logits_RV.device))
        if any(greedy):
            tokens_R = torch.where(torch.tensor(greedy, device=tokens_R.device), logprobs_RV.argmax(-1), tokens_R)
    chosen_R = logprobs_RV.gather(1, tokens_R[:, None])[:, 0]
    tokens_R = torch.where(logprobs_RV.isnan().any(dim=-1), -1, tokens_R)
    return tokens_R.tolist(), chosen_R.tolist()


def _invert(probs_RV: Tensor, uniforms_R: Tensor) -> Tensor:
    """Inverse transform sampling: the first token whose cumulative weight exceeds u x total."""
    cumulative_RV = probs_RV.cumsum(dim=-1, dtype=torch.float64)
    thresholds_R1 = uniforms_R[:, None] * cumulative_RV[:, -1:]
    tokens_R = torch.searchsorted(cumulative_RV, thresholds_R1, right=True)[:, 0]
    return tokens_R.clamp(max=probs_RV.shape[1] - 1)  # only a row of NaN gives an index after the last token


def truncate(probs_RV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Apply top-k, then top-p, then min-p: excluded tokens get probability 0. Unused truncations are skipped.

    top_k keeps the k most likely tokens (lower ids first on ties). top_p keeps the smallest set of most likely tokens
    whose renormalized probabilities reach p. min_p keeps tokens with at least min_p x the largest probability.
    """
    if any(s.top_k > 0 or s.top_p < 1 for s in params):
        probs_RV = _truncate_sorted(probs_RV, params)
    if any(s.min_p > 0 for s in params):
        floor_R1 = probs_RV.amax(dim=-1, keepdim=True) * probs_RV.new_tensor([s.min_p for s in params])[:, None]
        probs_RV = probs_RV * (probs_RV >= floor_R1)
    return probs_RV


def _truncate_sorted(probs_RV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    size = probs_RV.shape[1]
    falling_RV, order_RV = probs_RV.sort(dim=-1, descending=True, stable=True)
    ranks_V = torch.arange(size, device=probs_RV.device)
    top_k_R1 = torch.tensor([s.top_k if s.top_k > 0 else size for s in params], device=probs_RV.device)[:, None]
    falling_RV = falling_RV * (ranks_V < top_k_R1)
    top_p_R1 = probs_RV.new_tensor([s.top_p for s in params], dtype=torch.float64)[:, None]
    cumulative_RV = falling_RV.cumsum(dim=-1, dtype=torch.float64)
    before_RV = cumulative_RV - falling_RV  # without the token itself, so that the token that crosses p is kept
    falling_RV = falling_RV * ((before_RV < top_p_R1 * cumulative_RV[:, -1:]) | (top_p_R1 >= 1))
    return torch.zeros_like(probs_RV).scatter_(1, order_RV, falling_RV)
