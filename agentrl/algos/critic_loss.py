"""The loss of a critic as a backend takes it, and what its values are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor

from agentrl.algos.base import Scope, TokenBatch
from agentrl.algos.value import explained_variance, value_loss
from agentrl.samples import Sample


@dataclass(frozen=True)
class ValueLoss:
    """`value_loss` of what a value model says, against the returns that samples were credited with."""

    cliprange_value: float = 0.5
    aggregation: str = "token-mean"
    norm_length: int | None = None

    @property
    def needs_entropy(self) -> bool:
        """A value model has none."""
        return False

    @property
    def scope(self) -> Scope:
        """Each token is looked at alone."""
        return "row"

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `LossFunction`."""
        if batch.scalars is None or batch.returns is None:
            raise ValueError("a critic is a model of one number a token, and learns from samples with returns")
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
    """`explained_variance` over all trained tokens of samples that have values and returns."""
    values_1N, returns_1N = (
        torch.tensor([[number for row, mask in rows for number in compress(row or (), mask)]], dtype=torch.float64)
        for rows in (
            [(sample.values, sample.loss_mask) for sample in samples],
            [(sample.returns, sample.loss_mask) for sample in samples],
        )
    )
    return explained_variance(values_1N, returns_1N, torch.ones_like(returns_1N, dtype=torch.bool))
