"""The members of each group: one a rollout, however many trajectories (rows) it has.

Axes: B rows, T tokens, M members.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AdvantageBatch:
    """What an advantage estimator reads, for all rows of a step.

    Attributes:
        token_rewards: [B, T]; a rollout's reward stands once, on its last trained token.
        loss_mask: [B, T] bool.
        uids: [B]; rows of one group share it.
        rollout_ids: [B]; rows of one rollout share it within their group.
        valid: [B] bool; other rows take no part in statistics and get advantage 0.
        values: [B, T] of a critic, for the estimators that need one.
        baselines: [B] rewards of a baseline rollout, for the estimators that need one; NaN where there is none.
        turn_rewards: [B, T]; rewards of single turns or steps, each on the last trained token of its turn. They are not
            part of `token_rewards`.
        step_ends: [B, T] bool, where a step ends; None: every run of trained tokens (a turn) is a step.
        observation_keys: [B][turns], the state a turn began in, by a key of its own; None where it is not known.
        components: name -> [B], rewards by name, of the rollout of each row.
    """

    token_rewards: Tensor
    loss_mask: Tensor
    uids: Sequence[str]
    rollout_ids: Sequence[str]
    valid: Sequence[bool]
    values: Tensor | None = None
    baselines: Tensor | None = None
    turn_rewards: Tensor | None = None
    step_ends: Tensor | None = None
    observation_keys: Sequence[Sequence[str | None]] | None = None
    components: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def all_rewards(self) -> Tensor:
        """[B, T]: those of tokens and of turns."""
        return self.token_rewards if self.turn_rewards is None else self.token_rewards + self.turn_rewards


@dataclass(frozen=True, slots=True)
class Members:
    """The rollouts of a step: [B] the member of each row, [M] score and validity, [groups][·] members of each group."""

    of_row: Tensor
    scores: Tensor
    valid: Tensor
    groups: list[list[int]]

    def spread(self, values_M: Tensor, loss_mask_BT: Tensor) -> Tensor:
        """[B, T]: each member's value on the trained tokens of each of its rows, 0 elsewhere."""
        return torch.where(loss_mask_BT.bool(), values_M[self.of_row, None], 0.0)

    def trained(self, loss_mask_BT: Tensor) -> Tensor:
        """[B, T] bool: the trained tokens of valid members, each of which counts once in a mean over the batch."""
        return loss_mask_BT.bool() & self.valid[self.of_row, None]

    def comparable(self) -> Iterator[list[int]]:
        """The valid members of each group that has several."""
        for group in self.groups:
            valid = [member for member in group if self.valid[member]]
            if len(valid) > 1:
                yield valid

    def unequal(self) -> Iterator[list[int]]:
        """The valid members of each group in which scores differ: everyone else has nothing to compare with."""
        return (group for group in self.comparable() if not equal(self.scores[group]))


def find_members(batch: AdvantageBatch) -> Members:
    """Gather rows into rollouts and rollouts into groups. Scores are float64: the sum over a rollout's rewards."""
    numbers: dict[tuple[str, str], int] = {}
    of_row = torch.tensor(
        [numbers.setdefault(key, len(numbers)) for key in zip(batch.uids, batch.rollout_ids, strict=True)],
        dtype=torch.long,
        device=batch.token_rewards.device,
    )
    row_scores = batch.token_rewards.double().sum(-1)
    scores = row_scores.new_zeros(len(numbers)).index_add(0, of_row, row_scores)
    valid = torch.ones(len(numbers), dtype=torch.bool, device=of_row.device)
    valid[of_row[~torch.tensor(list(batch.valid), dtype=torch.bool, device=of_row.device)]] = False
    groups: dict[str, list[int]] = {}
    for (uid, _), member in numbers.items():
        groups.setdefault(uid, []).append(member)
    return Members(of_row, scores, valid, list(groups.values()))


def equal(scores: Tensor) -> bool:
    """Whether scores, [N], differ by no more than float32 rounding: then there is nothing to compare.

    An exact test would not do: 0.1 + 0.2 and 0.3 are one reward, and dividing their difference by its own standard
    deviation would make advantages of size 1 out of rounding.
    """
    return float(scores.max() - scores.min()) <= rounding(scores)


def rounding(scores: Tensor) -> float:
    """By how much scores, [N], may differ and still be equal."""
    return 8 * torch.finfo(torch.float32).eps * float(scores.abs().max())
