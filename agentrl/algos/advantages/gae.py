"""GAE: token advantages and returns, from rewards and a critic's values (Schulman et al. 2015, arXiv:1506.02438)."""

from __future__ import annotations

from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, find_members
from agentrl.algos.advantages.normalization import whitened
from agentrl.algos.advantages.sequences import discounted_sums, find_sequences
from agentrl.algos.options import with_needs
from agentrl.errors import ConfigError, Kind


@with_needs("values")
def gae(batch: AdvantageBatch, *, gamma: float = 1.0, lam: float = 1.0, whiten: bool = True) -> tuple[Tensor, Tensor]:
    """A_t = d_t + gamma * lam * A_{t+1} with d_t = r_t + gamma * V_{t+1} - V_t; returns are A_t + V_t.

    t + 1 is the next trained token of the rollout, even if it is in another trajectory (row of the batch). So a tool
    result between two trained tokens does not end the sequence and adds no discount. After the last trained token, V
    and A are 0. Turn rewards are added to token rewards. After the returns are computed, `whiten` normalises advantages
    to mean 0 and variance 1 over all trained tokens of the batch. Example: rewards 0, 1, values 0.5, 0.6, gamma 1, lam
    0.5: d = 0.1, 0.4, A = 0.3, 0.4, returns 0.8, 1.

    Raises:
        ConfigError: `values` is missing.
    """
    if batch.values is None:
        raise ConfigError.at(
            "algorithm.adv_estimator",
            Kind.MISSING,
            "advantage estimator 'gae' needs the values of a critic for each token",
        )
    sequences = find_sequences(batch, find_members(batch))
    values = sequences.of_tokens(batch.values)
    following = values.roll(-1, dims=1)
    following[:, -1] = 0.0
    deltas = sequences.sums(batch.all_rewards) + gamma * following - values
    advantages = discounted_sums(deltas, gamma * lam)
    returns, result = sequences.spread(advantages + values), sequences.spread(advantages)
    dtype = batch.token_rewards.dtype
    return (whitened(result, sequences.trained) if whiten else result).to(dtype), returns.to(dtype)
