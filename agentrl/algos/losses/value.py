"""Loss of a value model, and the explained variance of the returns. Axes: B rows, T tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor

from agentrl.algos.base import Scope, TokenBatch
from agentrl.algos.losses.aggregation import aggregate, token_mean
from agentrl.types.sample import Sample


def value_loss(
    values: Tensor,
    returns: Tensor,
    old_values: Tensor | None,
    loss_mask: Tensor,
    *,
    cliprange_value: float = 0.5,
    aggregation: str = "token-mean",
    weights: Tensor | Sequence[float] | None = None,
    norm_length: int | None = None,
    denominator: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return (loss, metrics): max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2, aggregated to [].

    OpenAI's PPO code has the same loss (Dhariwal et al. 2017, github.com/openai/baselines, ppo2). A value that has
    moved by more than c since the start of the step gets no gradient if the clipped value is farther from the return.

    Args:
        values: [B, T], outputs of the trained model.
        returns: [B, T], the targets.
        old_values: [B, T], values at the start of the step; None: no clipping.
        loss_mask: [B, T], true where a token is trained.
        cliprange_value: c.
        aggregation, weights, norm_length, denominator: as in `aggregate`.

    Metrics, [] and detached: `vf_clipfrac`, share of tokens whose loss is clipped; `vpred_mean`, mean of the values.
    """
    squares = (values - returns).square()
    clipped = squares
    if old_values is not None:
        bounded = torch.clamp(values, old_values - cliprange_value, old_values + cliprange_value)
        clipped = (bounded - returns).square()
    losses = torch.maximum(squares, clipped) / 2
    loss = aggregate(aggregation, losses, loss_mask, weights=weights, norm_length=norm_length, denominator=denominator)
    metrics = {"vf_clipfrac": (clipped > squares).to(values.dtype), "vpred_mean": values}
    return loss, {name: token_mean(each, loss_mask) for name, each in metrics.items()}


def explained_variance(values: Tensor, returns: Tensor, loss_mask: Tensor) -> float:
    """1 - Var(R - V) / Var(R) over the trained tokens of [B, T]: 1 is perfect, 0 is no better than a constant.

    The result is 0 if all returns are equal, or if there are no trained tokens.
    """
    mask = loss_mask.bool()
    returns_N, values_N = returns.detach()[mask].double(), values.detach()[mask].double()
    if len(returns_N) == 0 or float((variance := returns_N.var(correction=0)) * len(returns_N)) == 0:
        return 0.0
    return 1 - float((returns_N - values_N).var(correction=0) / variance)


@dataclass(frozen=True)
class ValueLoss:
    """`value_loss` of a value model's outputs and the samples' returns."""

    cliprange_value: float = 0.5
    aggregation: str = "token-mean"
    norm_length: int | None = None

    @property
    def needs_entropy(self) -> bool:
        """Always false: a value model has no entropy."""
        return False

    @property
    def scope(self) -> Scope:
        """`row`, because the loss of each token is independent of other tokens."""
        return "row"

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `LossFunction`."""
        if batch.scalars is None or batch.returns is None:
            raise ValueError("a critic needs a scalar head and samples with returns")
        return value_loss(
            batch.scalars,
            batch.returns,
            batch.values,
            batch.loss_mask,
            cliprange_value=self.cliprange_value,
            aggregation=self.aggregation,
            weights=batch.weights,
            denominator=batch.denominator,
        )


def explained_share(samples: Sequence[Sample]) -> float:
    """Compute `explained_variance` over all trained tokens of samples that have values and returns."""
    values_1N, returns_1N = (
        torch.tensor([[number for row, mask in rows for number in compress(row or (), mask)]], dtype=torch.float64)
        for rows in (
            [(sample.values, sample.loss_mask) for sample in samples],
            [(sample.returns, sample.loss_mask) for sample in samples],
        )
    )
    return explained_variance(values_1N, returns_1N, torch.ones_like(returns_1N, dtype=torch.bool))
