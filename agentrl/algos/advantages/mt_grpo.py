"""MT-GRPO: outcome advantage for all turns, plus a turn advantage for all but the last turn (arXiv:2505.11821)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, Members, find_members
from agentrl.algos.advantages.normalization import standardised_in_groups
from agentrl.algos.advantages.sequences import Spans, find_sequences, find_turns


def mt_grpo(
    batch: AdvantageBatch, *, turn_advantage_weight: float = 1.0, norm_adv_by_std: bool = True
) -> tuple[Tensor, Tensor]:
    """A of turn k = O + weight * T_k; A of the last turn = O. O and T_k are standardised within the group, as in GRPO.

    T_k compares the reward of turn k with the rewards of turn k in the group's other rollouts. Rollouts whose last turn
    is turn k are left out of this comparison (the paper has two turns). O compares the outcomes; a reward of the last
    turn is added to the outcome. Example: two rollouts of two turns, rewards of the first turns 1 and 0, outcomes 0 and
    1. Then T_1 = 0.7071, -0.7071 and O = -0.7071, 0.7071, so A = 0, -0.7071 and 0, 0.7071. A group of one has advantage
    0. O is 0 if all outcomes of the group are equal. T_k is 0 if all compared rewards of turn k are equal. The returns
    equal the advantages.
    """
    members = find_members(batch)
    sequences = find_sequences(batch, members)
    turns = find_turns(sequences)
    rewards = turns.sums(sequences.sums(batch.all_rewards))
    outcomes = torch.where(turns.last, rewards, 0.0).sum(1, keepdim=True)
    outcome = standardised_in_groups(outcomes, members.valid[:, None], members, norm_adv_by_std)
    advantages = outcome + turn_advantage_weight * _turn_advantages(rewards, turns, members, norm_adv_by_std)
    result = sequences.spread(turns.spread(advantages)).to(batch.token_rewards.dtype)
    return result, result


def _turn_advantages(rewards_MK: Tensor, turns: Spans, members: Members, by_std: bool) -> Tensor:
    went_on = turns.there & ~turns.last
    turn_by_turn = [
        standardised_in_groups(rewards_MK[:, [turn]], went_on[:, [turn]], members, by_std)
        for turn in range(rewards_MK.shape[1])
    ]
    return torch.cat(turn_by_turn, dim=1)
