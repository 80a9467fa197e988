"""Imitation: negative log-likelihood, each token weighted by its advantage (1 for a demonstration)."""

from __future__ import annotations

from agentrl.algos.losses.registry import LossBatch, TokenLoss


def sft(batch: LossBatch) -> TokenLoss:
    """-A log p. Old log-probabilities are not read. Metric: `nll`, the unweighted negative log-likelihood, in nats."""
    return -batch.advantages * batch.logprobs, {"nll": -batch.logprobs}
