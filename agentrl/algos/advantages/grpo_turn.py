"""Turn-level GRPO: each turn's discounted return, standardised over all turns of the group (after arXiv:2511.14846)."""

from __future__ import annotations

from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, find_members
from agentrl.algos.advantages.normalization import standardised_in_groups
from agentrl.algos.advantages.sequences import discounted_sums, find_sequences, find_turns


def grpo_turn(batch: AdvantageBatch, *, gamma: float = 1.0, norm_adv_by_std: bool = True) -> tuple[Tensor, Tensor]:
    """A of turn k = standardised R_k, R_k = r_k + gamma * R_{k+1}; the outcome is added to the reward of the last turn.

    Returns are standardised over all turns of all valid rollouts of the group. Example: two rollouts of two turns, turn
    reward 1 on the first turn of the first rollout, outcomes 1 and 0, gamma 0.5. Then R = 1.5, 1 and 0, 0; mean 0.625,
    std 0.75; A = 1.167, 0.5, -0.833, -0.833. A group of one, or of equal returns, has advantage 0. The returns equal
    the advantages.
    """
    members = find_members(batch)
    sequences = find_sequences(batch, members)
    turns = find_turns(sequences)
    returns = discounted_sums(turns.sums(sequences.sums(batch.all_rewards)), gamma)
    standard = standardised_in_groups(returns, turns.there, members, norm_adv_by_std)
    result = sequences.spread(turns.spread(standard)).to(batch.token_rewards.dtype)
    return result, result
