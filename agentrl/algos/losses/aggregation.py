"""Reduction of token losses to one number that does not depend on micro-batches or padding.

Every mode is `sum(weight of the row * value * mask) / denominator`. Weights and denominator are computed over the
mini-batch, so the results of its micro-batches add up. Axes: B rows, T tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentrl.errors import ConfigError, Kind, suggestion

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def aggregation_weights(
    mode: str,
    num_trained_tokens: Sequence[int],
    rollout_ids: Sequence[str] | None = None,
    norm_length: int | None = None,
) -> tuple[list[float], float]:
    """Return the weight of each row, [B], and the denominator.

    A sequence is a rollout with all its rows. Sequences without trained tokens are ignored. Example: one rollout has
    two rows of 3 and 1 tokens, another rollout has one row of 4 tokens:

        token-mean                 weights 1, 1, 1           denominator 8
        seq-mean-token-sum         weights 1, 1, 1           denominator 2
        seq-mean-token-mean        weights 1/4, 1/4, 1/4     denominator 2
        seq-mean-token-sum-norm    weights 1, 1, 1           denominator 2 * norm_length

    The names are verl's. Weights and denominators equal verl's if each rollout is one row. A row with an empty rollout
    id counts as a separate rollout.

    Raises:
        ConfigError: an unknown mode, or `seq-mean-token-sum-norm` without a positive `norm_length`.
    """
    if mode not in MODES:
        raise ConfigError.at(
            "actor.loss_agg_mode", Kind.NOT_FOUND, f"unknown aggregation '{mode}': {suggestion(mode, MODES)}"
        )
    if mode == "seq-mean-token-sum-norm" and not norm_length:
        raise ConfigError.at(
            "actor.loss_agg_mode", Kind.MISSING, "aggregation 'seq-mean-token-sum-norm' needs a positive norm_length"
        )
    ids = [name or row for row, name in enumerate(rollout_ids or [""] * len(num_trained_tokens))]
    tokens_of: Counter[str | int] = Counter()
    for name, count in zip(ids, num_trained_tokens, strict=True):
        tokens_of[name] += count
    # at least 1, so that a batch without trained tokens has loss 0
    num_tokens, num_sequences = max(1, tokens_of.total()), max(1, sum(count > 0 for count in tokens_of.values()))
    if mode == "token-mean":
        return [1.0] * len(ids), float(num_tokens)
    if mode == "seq-mean-token-mean":
        return [1.0 / max(1, tokens_of[name]) for name in ids], float(num_sequences)
    scale = norm_length if mode == "seq-mean-token-sum-norm" and norm_length else 1
    return [1.0] * len(ids), float(num_sequences * scale)


def aggregate(
    mode: str,
    values: Tensor,
    loss_mask: Tensor,
    *,
    weights: Tensor | Sequence[float] | None = None,
    rollout_ids: Sequence[str] | None = None,
    norm_length: int | None = None,
    denominator: float | None = None,
) -> Tensor:
    """Reduce `values`, [B, T], to one number, [], where `loss_mask`, [B, T], is true.

    Args:
        mode: see `aggregation_weights`.
        weights, denominator: [B] and a number, both from `aggregation_weights` over the mini-batch that contains these
            rows. None: these rows are the complete mini-batch.
        rollout_ids: [B]; rows with the same id are one sequence. None: every row is a sequence.
        norm_length: divisor of `seq-mean-token-sum-norm`; None: the padded width T, as in verl.

    Raises:
        ConfigError: an unknown mode.
        ValueError: only one of weights and denominator is given.
    """
    mask = loss_mask.bool()
    if (weights is None) != (denominator is None):
        raise ValueError("weights and denominator must be passed together")
    if weights is None or denominator is None:
        counts: list[int] = mask.sum(-1).tolist()
        weights, denominator = aggregation_weights(mode, counts, rollout_ids, norm_length or mask.shape[-1])
    weights_B1 = torch.as_tensor(weights, dtype=values.dtype, device=values.device)[:, None]
    # torch.where instead of a product: values outside the mask may be infinite
    return (weights_B1 * torch.where(mask, values, 0.0)).sum() / denominator


def add_metrics(sums: dict[str, Tensor], metrics: Mapping[str, Tensor], share: float) -> None:
    """Add a micro-batch's metrics to `sums`; `share` is the micro-batch's share of the mini-batch's trained tokens.

    Metrics are means, or maxima if the name ends in `/max`.
    """
    for name, value in metrics.items():
        if name.endswith("/max"):
            sums[name] = torch.maximum(sums[name], value) if name in sums else value
        else:
            sums[name] = sums.get(name, 0.0) + value * share


def token_mean(values: Tensor, loss_mask: Tensor) -> Tensor:
    """Unweighted mean over trained tokens, [], for metrics."""
    mask = loss_mask.bool()
    return torch.where(mask, values.detach(), 0.0).sum() / mask.sum().clamp(min=1)
