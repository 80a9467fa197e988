"""REINFORCE++: discounted returns of tokens, normalised over the batch (Hu et al. 2025, arXiv:2501.03262)."""

from __future__ import annotations

from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, find_members
from agentrl.algos.advantages.normalization import whitened
from agentrl.algos.advantages.sequences import discounted_sums, find_sequences


def reinforce_plus_plus(batch: AdvantageBatch, *, gamma: float = 1.0) -> tuple[Tensor, Tensor]:
    """A = (R - mean(R)) / sqrt(var(R) + 1e-8) over all trained tokens of the batch, R_t = r_t + gamma * R_{t+1}.

    t + 1 is the next trained token of the rollout: a tool result between two trained tokens neither ends nor discounts
    a return.
    Turn rewards are added to token rewards. Two rollouts of one token, rewards 1 and 0: A = 0.7071, -0.7071.
    Returns are the R_t.
    """
    sequences = find_sequences(batch, find_members(batch))
    returns = sequences.spread(discounted_sums(sequences.sums(batch.all_rewards), gamma))
    dtype = batch.token_rewards.dtype
    return whitened(returns, sequences.trained).to(dtype), returns.to(dtype)
