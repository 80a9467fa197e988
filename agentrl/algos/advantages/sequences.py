"""The trained tokens of each rollout as one sequence, in the order of its rows, with its turns and steps.

Tokens between trained tokens (a tool result, the prompt of a later trajectory) are not part of the sequence. A return
continues across these tokens. Axes: B rows, T tokens, M members, N trained tokens, K turns or steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, Members


@dataclass(frozen=True, slots=True)
class Sequences:
    """The trained tokens of M valid rollouts (members): one sequence of up to N tokens for each.

    Attributes:
        of_row: [B], the member of each row.
        trained: [B, T] bool.
        place: [B, T], for each token, the last trained token at or before it, as an index in the member's sequence; 0
            if there is none.
        there: [M, N] bool, whether each member's sequence has a token at each index.
    """

    of_row: Tensor
    trained: Tensor
    place: Tensor
    there: Tensor

    def sums(self, values_BT: Tensor) -> Tensor:
        """Return one sum for each trained token, [M, N] float64.

        A sum contains the values of a trained token and of the untrained tokens up to the next trained token. The first
        sum of a rollout also contains the values before the rollout's first trained token.
        """
        result = values_BT.new_zeros(self.there.shape, dtype=torch.float64)
        rows = self.of_row[:, None].expand_as(self.place)
        result.index_put_((rows, self.place), values_BT.double(), accumulate=True)
        return torch.where(self.there, result, 0.0)

    def of_tokens(self, values_BT: Tensor) -> Tensor:
        """Return the value on each trained token, [M, N] float64; values on other tokens are ignored."""
        return self.sums(torch.where(self.trained, values_BT, 0.0))

    def spread(self, values_MN: Tensor) -> Tensor:
        """Put values of trained tokens back into rows, [B, T]; 0 elsewhere."""
        return torch.where(self.trained, values_MN[self.of_row[:, None], self.place], 0.0)


@dataclass(frozen=True, slots=True)
class Spans:
    """Turns or steps: the index of each trained token's span, [M, N], and whether a span exists, [M, K] bool."""

    of_token: Tensor
    there: Tensor

    def sums(self, values_MN: Tensor) -> Tensor:
        """Sum over the tokens of each span, [M, K]."""
        return values_MN.new_zeros(self.there.shape).scatter_add(1, self.of_token, values_MN)

    def spread(self, values_MK: Tensor) -> Tensor:
        """Put each span's value on its tokens, [M, N]."""
        return values_MK.gather(1, self.of_token)

    @property
    def last(self) -> Tensor:
        """Mask of the last span of each rollout, [M, K] bool."""
        return self.there & ~_shifted_left(self.there)


def find_sequences(batch: AdvantageBatch, members: Members) -> Sequences:
    """Find the sequence of each valid rollout; failed rollouts have none."""
    trained = members.trained(batch.loss_mask)
    lengths = trained.sum(-1)
    before, so_far = torch.zeros_like(lengths), [0] * len(members.scores)
    for row, (member, length) in enumerate(zip(members.of_row.tolist(), lengths.tolist(), strict=True)):
        before[row] = so_far[member]
        so_far[member] += length
    place = (before[:, None] + trained.cumsum(-1) - 1).clamp(min=0)
    return Sequences(members.of_row, trained, place, _counted(lengths.new_tensor(so_far)))


def find_turns(sequences: Sequences) -> Spans:
    """Find the model's turns: consecutive trained tokens are one turn."""
    trained = sequences.trained
    follows = torch.cat([torch.zeros_like(trained[:, :1]), trained[:, :-1]], dim=1)
    return _spans(sequences.sums(trained & ~follows) > 0)


def find_steps(sequences: Sequences, step_ends: Tensor) -> Spans:
    """Find the steps, which end at `step_ends`, [B, T], and at the end of the rollout."""
    ends = sequences.sums(step_ends.bool()) > 0
    starts = torch.cat([torch.ones_like(ends[:, :1]), ends[:, :-1]], dim=1)
    return _spans(starts & sequences.there)


def discounted_sums(values_MN: Tensor, discount: float) -> Tensor:
    """S_n = v_n + discount * S_{n+1}, [M, N]. Values 1, 0, 4 with discount 0.5: 2, 2, 4."""
    sums, following = [], torch.zeros_like(values_MN[:, 0])
    for values in reversed(values_MN.unbind(1)):
        following = values + discount * following
        sums.append(following)
    return torch.stack(sums[::-1], dim=1)


def _spans(starts_MN: Tensor) -> Spans:
    return Spans((starts_MN.cumsum(1) - 1).clamp(min=0), _counted(starts_MN.sum(1)))


def _counted(counts_M: Tensor) -> Tensor:
    """Mask whose first `counts_M` columns are true, [M, K] bool. K is at least 1, also if all counts are 0."""
    width = max([1, *counts_M.tolist()])
    return torch.arange(width, device=counts_M.device) < counts_M[:, None]


def _shifted_left(values_MK: Tensor) -> Tensor:
    return torch.cat([values_MK[:, 1:], torch.zeros_like(values_MK[:, :1])], dim=1)
