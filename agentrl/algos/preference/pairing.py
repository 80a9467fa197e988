"""Preferences between the rollouts of a group: the choice of pairs, and the preference loss.

Axes: B samples, T tokens, R rollouts, P pairs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from agentrl.algos.advantages.members import equal
from agentrl.algos.base import Scope, TokenBatch
from agentrl.algos.credit import credited, valid_rollouts
from agentrl.algos.losses.aggregation import token_mean
from agentrl.algos.preference.losses import pair_losses, ranking_loss
from agentrl.types.rollout import Group
from agentrl.types.sample import Sample
from agentrl.utils.seeds import derive_seed

Pairing = Literal["best_worst", "best_random"]


def choose(groups: Sequence[Group], samples: Sequence[Sample], pairing: Pairing) -> list[Sample]:
    """Set advantage 1 for the best rollout of each group, -1 for the rejected rollout, 0 for all other rollouts.

    The rejected rollout is the worst one; with `best_random`, a random one that is worse than the best. Ties are broken
    at random, with a seed that depends only on the group's uid. Groups of equal scores have no pair.
    """
    signs: dict[str, float] = {}
    for group in groups:
        scores = _scores(group)
        if _differ(scores):
            chosen, rejected = _pair(scores, pairing, random.Random(derive_seed(0, "pair", group.uid)))
            signs |= {chosen: 1.0, rejected: -1.0}
    return [credited(sample, signs.get(sample.rollout_id, 0.0)) for sample in samples]


def centre(groups: Sequence[Group], samples: Sequence[Sample]) -> list[Sample]:
    """Set each rollout's advantage to its score minus the mean of its group: the input of a ranking loss."""
    scores: dict[str, float] = {}
    for group in groups:
        of_group = _scores(group)
        mean = sum(of_group.values()) / max(1, len(of_group))
        differ = _differ(of_group)  # subtracting the mean of equal scores would leave rounding errors
        scores |= {rollout_id: score - mean if differ else 0.0 for rollout_id, score in of_group.items()}
    return [credited(sample, scores[sample.rollout_id]) for sample in samples]


@dataclass(frozen=True)
class PreferenceLoss:
    """A preference loss over the log-probabilities of rollouts, averaged over the groups of a mini-batch.

    Attributes:
        name: a registered preference loss, or `ranking` for all rollouts of a group.
        length_normalized: whether log-probabilities are means over a rollout's tokens, not sums.
    """

    name: str
    beta: float
    length_normalized: bool = False
    options: Mapping[str, object] = field(default_factory=dict)
    aggregation: str = "token-mean"
    norm_length: int | None = None
    needs_entropy: bool = False
    scope: Scope = "group"

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `LossFunction`."""
        sequences = _sequences(batch, self.length_normalized)
        losses, values = self._of_groups(sequences)
        num_groups = batch.num_groups or max(1, len(losses))
        # the metrics are means over groups; they are rescaled, because the backend weights metrics by numbers of tokens
        num_tokens = batch.loss_mask.sum().clamp(min=1).to(losses.dtype)
        scale = batch.denominator / (num_groups * num_tokens)
        metrics = {name: each.sum() * scale for name, each in values.items() if len(losses)}
        nll = token_mean(-batch.logprobs, batch.loss_mask)
        metrics |= {"nll": nll, "entropy": token_mean(batch.entropy, batch.loss_mask)}
        return losses.sum() / num_groups, metrics

    def _of_groups(self, sequences: _Sequences) -> tuple[Tensor, dict[str, Tensor]]:
        if self.name == "ranking":
            return ranking_loss(sequences.logps, sequences.scores, sequences.groups, beta=self.beta)
        chosen, rejected = sequences.pairs()
        reference = sequences.ref_logps
        return pair_losses(
            self.name,
            sequences.logps[chosen],
            sequences.logps[rejected],
            ref_chosen_logps=None if reference is None else reference[chosen],
            ref_rejected_logps=None if reference is None else reference[rejected],
            beta=self.beta,
            **self.options,
        )


@dataclass(frozen=True, slots=True)
class _Sequences:
    """The rollouts of a mini-batch, [R] each."""

    logps: Tensor
    ref_logps: Tensor | None
    scores: Tensor
    groups: Tensor

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Indices of the chosen and of the rejected rollouts, [P] each; groups without a pair are left out."""
        chosen = {int(self.groups[place]): int(place) for place in (self.scores > 0).nonzero()}
        rejected = {int(self.groups[place]): int(place) for place in (self.scores < 0).nonzero()}
        both = sorted(chosen.keys() & rejected.keys())
        device = self.logps.device
        places = [torch.tensor([side[group] for group in both], dtype=torch.long) for side in (chosen, rejected)]
        return places[0].to(device), places[1].to(device)


def _sequences(batch: TokenBatch, by_length: bool) -> _Sequences:
    if batch.rollouts is None or batch.groups is None:
        raise ValueError("a preference loss compares rollouts of a group, but the batch has no groups")
    _, rollout_B = torch.unique(batch.rollouts, return_inverse=True)
    num_rollouts = int(rollout_B.max()) + 1

    def total(values_BT: Tensor) -> Tensor:
        rows_B = torch.where(batch.loss_mask, values_BT, 0.0).sum(-1)
        return rows_B.new_zeros(num_rollouts).index_add(0, rollout_B, rows_B)

    lengths_R = total(torch.ones_like(batch.logprobs)).clamp(min=1)
    divisor_R = lengths_R if by_length else torch.ones_like(lengths_R)
    groups_R = batch.groups.new_zeros(num_rollouts).index_put((rollout_B,), batch.groups)
    ref_logps_R = None if batch.ref_logprobs is None else total(batch.ref_logprobs) / divisor_R
    return _Sequences(total(batch.logprobs) / divisor_R, ref_logps_R, total(batch.advantages) / lengths_R, groups_R)


def _scores(group: Group) -> dict[str, float]:
    return {rollout_id: rollout.reward for rollout_id, rollout in valid_rollouts(group)}


def _differ(scores: Mapping[str, float]) -> bool:
    return bool(scores) and not equal(torch.tensor([*scores.values()], dtype=torch.float64))


def _pair(scores: dict[str, float], pairing: Pairing, draw: random.Random) -> tuple[str, str]:
    best, worst = max(scores.values()), min(scores.values())
    lower = [each for each, score in scores.items() if (score < best if pairing == "best_random" else score == worst)]
    return draw.choice([each for each, score in scores.items() if score == best]), draw.choice(lower)
