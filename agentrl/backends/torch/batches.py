"""Samples as tensors: what a loss reads of a micro-batch.

Axes: B samples, T tokens, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import torch
from torch import Tensor

from agentrl.algos.base import TokenBatch
from agentrl.samples import Sample


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples and where their trained tokens stand. A trained token at column t is predicted at column t - 1.

    Attributes:
        samples: [B], as they came.
        loss_mask: [B, T] bool, true where a token is trained.
        rows, columns: [N], where the trained tokens stand.
        targets: [N], the trained tokens.
        temperatures: [N], of the trained tokens; None where all are 1.
    """

    samples: Sequence[Sample]
    loss_mask: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    temperatures: Tensor | None

    def spread(self, values_N: Tensor) -> Tensor:
        """[B, T], 0 off the loss mask."""
        return values_N.new_zeros(self.loss_mask.shape).index_put((self.rows, self.columns), values_N)


def micro_batch(samples: Sequence[Sample], device: torch.device) -> MicroBatch:
    """Put samples into one micro-batch.

    Raises:
        ValueError: a sample trains its first token, which nothing predicts.
    """
    if any(sample.loss_mask[0] for sample in samples):
        raise ValueError("a sample trains its first token, which nothing predicts")
    loss_mask = padded([sample.loss_mask for sample in samples], torch.bool)
    rows, columns = loss_mask.nonzero(as_tuple=True)
    targets = padded([sample.token_ids for sample in samples], torch.long)[rows, columns]
    temperatures = padded([sample.temperatures for sample in samples], torch.float32)[rows, columns]
    found = MicroBatch(samples, *(tensor.to(device) for tensor in (loss_mask, rows, columns, targets, temperatures)))
    return replace(found, temperatures=None) if (temperatures == 1).all() else found


def token_batch(
    batch: MicroBatch, logprobs_N: Tensor, entropy_N: Tensor, weights: Sequence[float], denominator: float
) -> TokenBatch:
    """What a loss reads. `weights`, [B], and `denominator` come from the whole mini-batch."""

    def field(values: Sequence[Sequence[float] | None], dtype: torch.dtype = logprobs_N.dtype) -> Tensor | None:
        present = [row for row in values if row is not None]
        if not present:
            return None
        if len(present) < len(values):
            raise ValueError("some samples of a micro-batch have numbers that others lack")
        return padded(present, dtype).to(logprobs_N.device)

    samples = batch.samples
    return TokenBatch(
        logprobs=batch.spread(logprobs_N),
        entropy=batch.spread(entropy_N),
        loss_mask=batch.loss_mask,
        advantages=cast(Tensor, field([sample.advantages for sample in samples])),
        behaviour_logprobs=field([sample.behaviour_logprobs for sample in samples]),
        old_logprobs=field([sample.old_logprobs for sample in samples]),
        ref_logprobs=field([sample.ref_logprobs for sample in samples]),
        weights=torch.tensor(weights, dtype=logprobs_N.dtype, device=logprobs_N.device),
        denominator=denominator,
        importance_weights=field([sample.importance_weights for sample in samples]),
        policy_versions=field([sample.policy_versions for sample in samples], torch.long),
    )


def padded(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
    """[B, T] of rows of different lengths, with 0 behind them; on the CPU."""
    lengths_B1 = torch.tensor([[len(row)] for row in rows])
    values_BT = torch.zeros(len(rows), int(lengths_B1.max()), dtype=dtype)
    values_BT[torch.arange(values_BT.shape[1]) < lengths_B1] = torch.tensor([*chain.from_iterable(rows)], dtype=dtype)
    return values_BT
