"""Each rollout as one sequence of its trained tokens, in the order of its rows; and the turns and steps in it.

What lies between trained tokens (a tool's answer, the prompt of a later trajectory) is no part of the sequence: a
return passes over it, and does not end there. Axes: B rows, T tokens, M members, N trained tokens, K turns or steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.algos.members import AdvantageBatch, Members


@dataclass(frozen=True, slots=True)
class Sequences:
    """The trained tokens of valid rollouts.

    Attributes:
        of_row: [B], the member of each row.
        trained: [B, T] bool.
        place: [B, T], the number in the sequence of the last trained token at or before each token, 0 before the first.
        there: [M, N] bool, whether the sequence is that long.
    """

    of_row: Tensor
    trained: Tensor
    place: Tensor
    there: Tensor

    def sums(self, values_BT: Tensor) -> Tensor:
        """[M, N] float64: what stands on each trained token, and after it up to the next: that is its doing too."""
        result = values_BT.new_zeros(self.there.shape, dtype=torch.float64)
        rows = self.of_row[:, None].expand_as(self.place)
        result.index_put_((rows, self.place), values_BT.double(), accumulate=True)
        return torch.where(self.there, result, 0.0)

    def of_tokens(self, values_BT: Tensor) -> Tensor:
        """[M, N] float64: what stands on each trained token; whatever stands on others is not looked at."""
        return self.sums(torch.where(self.trained, values_BT, 0.0))

    def spread(self, values_MN: Tensor) -> Tensor:
        """[B, T]: the same back in rows, 0 elsewhere."""
        return torch.where(self.trained, values_MN[self.of_row[:, None], self.place], 0.0)


@dataclass(frozen=True, slots=True)
class Spans:
    """Turns or steps: [M, N] the number of the one a trained token is in, [M, K] bool whether there is such a one."""

    of_token: Tensor
    there: Tensor

    def sums(self, values_MN: Tensor) -> Tensor:
        """[M, K]: over the tokens of each span."""
        return values_MN.new_zeros(self.there.shape).scatter_add(1, self.of_token, values_MN)

    def spread(self, values_MK: Tensor) -> Tensor:
        """[M, N]: the value of its span on each token."""
        return values_MK.gather(1, self.of_token)

    @property
    def last(self) -> Tensor:
        """[M, K] bool: the last span of each rollout."""
        return self.there & ~_shifted_left(self.there)


def find_sequences(batch: AdvantageBatch, members: Members) -> Sequences:
    """The sequence of each valid rollout; a failed one has none."""
    trained = members.trained(batch.loss_mask)
    lengths = trained.sum(-1)
    before, so_far = torch.zeros_like(lengths), [0] * len(members.scores)
    for row, (member, length) in enumerate(zip(members.of_row.tolist(), lengths.tolist(), strict=True)):
        before[row] = so_far[member]
        so_far[member] += length
    place = (before[:, None] + trained.cumsum(-1) - 1).clamp(min=0)
    return Sequences(members.of_row, trained, place, _counted(lengths.new_tensor(so_far)))


def find_turns(sequences: Sequences) -> Spans:
    """The runs of trained tokens, each of which a turn of the model is."""
    trained = sequences.trained
    follows = torch.cat([torch.zeros_like(trained[:, :1]), trained[:, :-1]], dim=1)
    return _spans(sequences.sums(trained & ~follows) > 0)


def find_steps(sequences: Sequences, step_ends: Tensor) -> Spans:
    """Spans that end where `step_ends`, [B, T], says, and with the rollout."""
    ends = sequences.sums(step_ends.bool()) > 0
    starts = torch.cat([torch.ones_like(ends[:, :1]), ends[:, :-1]], dim=1)
    return _spans(starts & sequences.there)


def discounted_sums(values_MN: Tensor, discount: float) -> Tensor:
    """[M, N]: S_n = v_n + discount * S_{n+1}. 1, 0, 4 at 0.5: 2, 2, 4."""
    sums, following = [], torch.zeros_like(values_MN[:, 0])
    for values in reversed(values_MN.unbind(1)):
        following = values + discount * following
        sums.append(following)
    return torch.stack(sums[::-1], dim=1)


def _spans(starts_MN: Tensor) -> Spans:
    return Spans((starts_MN.cumsum(1) - 1).clamp(min=0), _counted(starts_MN.sum(1)))


def _counted(counts_M: Tensor) -> Tensor:
    """[M, K] bool, the first of each row true; K is 1 or more, so that nothing has to ask whether there is any."""
    width = max([1, *counts_M.tolist()])
    return torch.arange(width, device=counts_M.device) < counts_M[:, None]


def _shifted_left(values_MK: Tensor) -> Tensor:
    return torch.cat([values_MK[:, 1:], torch.zeros_like(values_MK[:, :1])], dim=1)
