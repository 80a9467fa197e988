"""Distance between a checkpoint and the policy that sampled: perplexity, KL divergence and importance ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from agentrl.algos.kl_divergence import kl
from agentrl.replay.base import by_task
from agentrl.replay.logprobs.checkpoint_scores import ScoredRollout
from agentrl.replay.logprobs.clipping import Clip
from agentrl.replay.logprobs.off_policy import effective_number
from agentrl.stats.base import Estimate
from agentrl.stats.intervals import Floats, mean_estimate

QUANTILES = (0.01, 0.5, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Ratios:
    """Statistics of importance ratios (checkpoint / sampling policy).

    Attributes:
        num: number of ratios.
        log_quantiles: quantiles of the log ratios, at `QUANTILES`; the last is the maximum.
        effective_share: effective sample size (Kish) divided by `num`.
        clipped: the share of ratios outside the clip range of the run's loss; None if the loss does not clip them.
    """

    num: int
    log_quantiles: Sequence[float]
    effective_share: float
    clipped: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Statistics of a set of rollouts; every token has the same weight.

    Attributes:
        versions: the policy versions that sampled the tokens, ascending.
        sampled_perplexity, perplexity: exp(-mean log-probability), at sampling time and under the checkpoint.
        k1, k3: estimates of KL(sampling policy || checkpoint) per token, in nats. `algos.kl_divergence` defines k1 and
            k3, and clips k3.
        tokens, rollouts: statistics of the ratios per token, and per rollout.
    """

    versions: Sequence[int]
    sampled_perplexity: float
    perplexity: float
    k1: Estimate
    k3: Estimate
    tokens: Ratios
    rollouts: Ratios


def figures(scored: Sequence[ScoredRollout], level: float, clip: Clip | None) -> Figures:
    """Compute the statistics of rollouts. Intervals are clustered by task; `clip` defines the clipped share."""
    token_ratios = np.concatenate([rollout.log_ratios for rollout in scored])
    rollout_ratios = np.array([rollout.log_ratios.sum() for rollout in scored])
    token_means = np.array([rollout.log_ratios.mean() for rollout in scored])
    return Figures(
        sorted(frozenset().union(*(rollout.versions for rollout in scored))),
        _perplexity([rollout.sampled for rollout in scored]),
        _perplexity([rollout.checkpoint for rollout in scored]),
        _divergence("k1", scored, level),
        _divergence("k3", scored, level),
        _ratios(token_ratios, None if clip is None or clip.of_rollouts else _share_outside(clip, token_ratios)),
        _ratios(rollout_ratios, _share_outside(clip, token_means) if clip and clip.of_rollouts else None),
    )


def _perplexity(logprobs: Sequence[Floats]) -> float:
    nats = -float(np.concatenate(logprobs).mean())
    return math.exp(nats) if nats < 700 else math.inf


def _divergence(kind: str, scored: Sequence[ScoredRollout], level: float) -> Estimate:
    values = (kl(kind, torch.from_numpy(each.sampled), torch.from_numpy(each.checkpoint)).numpy() for each in scored)
    tasks = by_task(zip((each.task for each in scored), values, strict=True))
    return mean_estimate([np.concatenate(task) for task in tasks], level, share=False)


def _share_outside(clip: Clip, log_ratios: Floats) -> float:
    return float(((log_ratios < clip.low) | (log_ratios > clip.high)).mean())


def _ratios(log_ratios: Floats, clipped: float | None) -> Ratios:
    return Ratios(
        len(log_ratios),
        [float(quantile) for quantile in np.quantile(log_ratios, QUANTILES)],
        effective_number(log_ratios) / len(log_ratios),
        clipped,
    )
