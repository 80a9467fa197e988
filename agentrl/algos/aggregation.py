"""How the losses of tokens become one number, the same however the batch is cut or padded.

Every mode is `sum(weight of the row * value * mask) / denominator`; weights and denominator are functions of the whole
mini-batch, so the shares of its micro-batches add up. Axes: B rows, T tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentrl.errors import ConfigError, suggestion

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def aggregation_weights(
    mode: str,
    num_trained_tokens: Sequence[int],
    rollout_ids: Sequence[str] | None = None,
    norm_length: int | None = None,
) -> tuple[list[float], float]:
    """The weight of each row, [B], and the denominator.

    A sequence is a rollout: its rows are taken together, and it counts if it has a trained token. With rows of 3 and 1
    tokens of one rollout and a row of 4 of another:

        token-mean                 weights 1, 1, 1           denominator 8
        seq-mean-token-sum         weights 1, 1, 1           denominator 2
        seq-mean-token-mean        weights 1/4, 1/4, 1/4     denominator 2
        seq-mean-token-sum-norm    weights 1, 1, 1           denominator 2 * norm_length

    The names are verl's, and so are the numbers where a rollout is one row. A row with an empty rollout id is a
    rollout of its own.

    Raises:
        ConfigError: an unknown mode, or `seq-mean-token-sum-norm` without a positive `norm_length`.
    """
    if mode not in MODES:
        raise ConfigError(f"unknown aggregation '{mode}': {suggestion(mode, MODES)}")
    if mode == "seq-mean-token-sum-norm" and not norm_length:
        raise ConfigError("aggregation 'seq-mean-token-sum-norm' needs a positive norm_length")
    ids = [name or row for row, name in enumerate(rollout_ids or [""] * len(num_trained_tokens))]
    tokens_of: Counter[str | int] = Counter()
    for name, count in zip(ids, num_trained_tokens, strict=True):
        tokens_of[name] += count
    # never 0: a batch that trains nothing has loss 0
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
    """One number, [], from `values`, [B, T], where `loss_mask`, [B, T], is true.

    Args:
        mode: see `aggregation_weights`.
        weights: [B] and `denominator`: both from `aggregation_weights` over the whole mini-batch, of which these rows
            are a part. None: these rows are the whole mini-batch.
        rollout_ids: [B]; rows that share one are one sequence. None: every row is a sequence.
        norm_length: what `seq-mean-token-sum-norm` divides by; None: the padded width T, as in verl.

    Raises:
        ConfigError: an unknown mode.
        ValueError: weights without denominator, or the other way round.
    """
    mask = loss_mask.bool()
    if (weights is None) != (denominator is None):
        raise ValueError("weights and denominator belong together")
    if weights is None or denominator is None:
        counts: list[int] = mask.sum(-1).tolist()
        weights, denominator = aggregation_weights(mode, counts, rollout_ids, norm_length or mask.shape[-1])
    weights_B1 = torch.as_tensor(weights, dtype=values.dtype, device=values.device)[:, None]
    # where, not multiply: what stands off the mask may be infinite
    return (weights_B1 * torch.where(mask, values, 0.0)).sum() / denominator


def add_metrics(sums: dict[str, Tensor], metrics: Mapping[str, Tensor], share: float) -> None:
    """Add a micro-batch's metrics to those of its mini-batch, of whose trained tokens it has `share`.

    They are means, and largest values where the name ends in `/max`.
    """
    for name, value in metrics.items():
        if name.endswith("/max"):
            sums[name] = torch.maximum(sums[name], value) if name in sums else value
        else:
            sums[name] = sums.get(name, 0.0) + value * share


def token_mean(values: Tensor, loss_mask: Tensor) -> Tensor:
    """[]: the plain mean over trained tokens, for metrics."""
    mask = loss_mask.bool()
    return torch.where(mask, values.detach(), 0.0).sum() / mask.sum().clamp(min=1)
