"""The loss of a value model, and how much of the returns it explains. Axes: B rows, T tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentrl.algos.aggregation import aggregate, token_mean


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
    """(loss, metrics): max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2, aggregated, [].

    As in the code of PPO (Dhariwal et al. 2017, github.com/openai/baselines, ppo2): once a value has moved further
    than c from where the step began, moving on towards the return has no gradient.

    Args:
        values: [B, T] of the model being trained.
        returns: [B, T], what it is to predict.
        old_values: [B, T] at the start of the step; None: nothing is clipped.
        loss_mask: [B, T], true where a token is trained.
        cliprange_value: c.
        aggregation, weights, norm_length, denominator: as in `aggregate`.

    Metrics, [] and detached: `vf_clipfrac`, share of tokens that the clip decides; `vpred_mean`, mean of the values.
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
    """1 - Var(R - V) / Var(R) over the trained tokens of [B, T]: 1 is perfect, 0 no better than a constant.

    0 where returns do not vary: there is nothing to explain.
    """
    mask = loss_mask.bool()
    returns_N, values_N = returns.detach()[mask].double(), values.detach()[mask].double()
    if len(returns_N) == 0 or float((variance := returns_N.var(correction=0)) * len(returns_N)) == 0:
        return 0.0
    return 1 - float((returns_N - values_N).var(correction=0) / variance)
