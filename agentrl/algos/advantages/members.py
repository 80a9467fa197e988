"""The members of each group: one member for each rollout, even if it has several trajectories (rows).

Axes: B rows, T tokens, M members.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AdvantageBatch:
    """Input of an advantage estimator: all rows of a step.

    Attributes:
        token_rewards: [B, T]; a rollout's reward appears once, on its last trained token.
        loss_mask: [B, T] bool.
        uids: [B]; rows of one group have the same uid.
        rollout_ids: [B]; rows of one rollout have the same id, which is unique within the group.
        valid: [B] bool; invalid rows are excluded from all statistics and get advantage 0.
        values: [B, T], a critic's values, for the estimators that need them.
        baselines: [B], reward of the greedy rollout of each row's task, for estimators that need it; NaN if there is no
            greedy rollout or it failed.
        turn_rewards: [B, T]; rewards of single turns or steps, each on the last trained token of its turn. They are not
            part of `token_rewards`.
        step_ends: [B, T] bool, true where a step ends. None: every turn (consecutive trained tokens) is a step, or if
            `turn_rewards` is also None, the rollout is one step.
        observation_keys: `[B][turns]`, a key for the state in which each turn starts; None if the state is unknown.
        components: name -> [B], the named reward of each row's rollout.
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
        """Sum of token rewards and turn rewards, [B, T]."""
        return self.token_rewards if self.turn_rewards is None else self.token_rewards + self.turn_rewards


@dataclass(frozen=True, slots=True)
class Members:
    """Rollouts of a step: member of each row, [B]; score and validity of each member, [M]; members of each group."""

    of_row: Tensor
    scores: Tensor
    valid: Tensor
    groups: list[list[int]]

    def spread(self, values_M: Tensor, loss_mask_BT: Tensor) -> Tensor:
        """Put each member's value on the trained tokens of its rows, [B, T]; 0 elsewhere."""
        return torch.where(loss_mask_BT.bool(), values_M[self.of_row, None], 0.0)

    def trained(self, loss_mask_BT: Tensor) -> Tensor:
        """Mask of the trained tokens of valid members, [B, T] bool. Batch statistics weight these tokens equally."""
        return loss_mask_BT.bool() & self.valid[self.of_row, None]

    def comparable(self) -> Iterator[list[int]]:
        """Yield the valid members of each group that has at least two valid members."""
        for group in self.groups:
            valid = [member for member in group if self.valid[member]]
            if len(valid) > 1:
                yield valid

    def unequal(self) -> Iterator[list[int]]:
        """Yield the valid members of each group whose valid members have unequal scores."""
        return (group for group in self.comparable() if not equal(self.scores[group]))


def find_members(batch: AdvantageBatch) -> Members:
    """Collect rows into rollouts, rollouts into groups. A score (float64) is the sum of a rollout's token rewards."""
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
    """Whether all scores, [N], are equal within float32 rounding.

    An exact test would be wrong: 0.1 + 0.2 and 0.3 are the same reward. Dividing rounding errors by their standard
    deviation would turn them into advantages of size 1.
    """
    return float(scores.max() - scores.min()) <= rounding(scores)


def rounding(scores: Tensor) -> float:
    """Return the largest difference between scores, [N], that still counts as equal."""
    return 8 * torch.finfo(torch.float32).eps * float(scores.abs().max())
