"""Samples as right-padded tensors.

Axes: B samples, T tokens, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.algos.base import TokenBatch
from agentrl.samples import Sample


@dataclass(frozen=True, slots=True)
class PaddedSamples:
    """A micro-batch. A trained token at column t is predicted at column t - 1.

    Attributes:
        samples: [B], as they came.
        token_ids: [B, T], padded with 0.
        mask: [B, T], 1 where a token is not padding.
        loss_mask: [B, T] bool, true where a token is trained.
        rows, columns: [N], where the trained tokens stand.
        temperatures: [N], of the trained tokens.
    """

    samples: Sequence[Sample]
    token_ids: Tensor
    mask: Tensor
    loss_mask: Tensor
    rows: Tensor
    columns: Tensor
    temperatures: Tensor

    @property
    def targets(self) -> Tensor:
        """[N], the trained tokens."""
        return self.token_ids[self.rows, self.columns]

    def spread(self, values_N: Tensor) -> Tensor:
        """[B, T], 0 off the loss mask."""
        return values_N.new_zeros(self.token_ids.shape).index_put((self.rows, self.columns), values_N)


def pad_samples(samples: Sequence[Sample], device: torch.device) -> PaddedSamples:
    """Put samples into one micro-batch.

    Raises:
        ValueError: a sample trains its first token, which nothing predicts.
    """
    if any(sample.loss_mask[0] for sample in samples):
        raise ValueError("a sample trains its first token, which nothing predicts")
    lengths_B1 = torch.tensor([[len(sample.token_ids)] for sample in samples], device=device)
    token_ids_BT = _padded([sample.token_ids for sample in samples], torch.long, device)
    loss_mask_BT = _padded([sample.loss_mask for sample in samples], torch.bool, device)
    rows, columns = loss_mask_BT.nonzero(as_tuple=True)
    return PaddedSamples(
        samples,
        token_ids_BT,
        (torch.arange(token_ids_BT.shape[1], device=device) < lengths_B1).long(),
        loss_mask_BT,
        rows,
        columns,
        _padded([sample.temperatures for sample in samples], torch.float32, device)[rows, columns],
    )


def token_batch(
    batch: PaddedSamples, logprobs_N: Tensor, entropy_N: Tensor, weights: Sequence[float], denominator: float
) -> TokenBatch:
    """What a loss reads. `weights`, [B], and `denominator` come from the whole mini-batch."""

    def field(values: Sequence[Sequence[float] | None]) -> Tensor | None:
        present = [row for row in values if row is not None]
        if not present:
            return None
        if len(present) < len(values):
            raise ValueError("some samples of a micro-batch have log-probabilities that others lack")
        return _padded(present, logprobs_N.dtype, logprobs_N.device)

    samples = batch.samples
    return TokenBatch(
        logprobs=batch.spread(logprobs_N),
        entropy=batch.spread(entropy_N),
        loss_mask=batch.loss_mask,
        advantages=_padded([sample.advantages for sample in samples], logprobs_N.dtype, logprobs_N.device),
        behaviour_logprobs=field([sample.behaviour_logprobs for sample in samples]),
        old_logprobs=field([sample.old_logprobs for sample in samples]),
        ref_logprobs=field([sample.ref_logprobs for sample in samples]),
        weights=torch.tensor(weights, dtype=logprobs_N.dtype, device=logprobs_N.device),
        denominator=denominator,
    )


def _padded(rows: Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device) -> Tensor:
    tensors = [torch.tensor(row, dtype=dtype) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(device)
