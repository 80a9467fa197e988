"""ReMax: REINFORCE with the reward of a greedy rollout as baseline (Li et al. 2023, arXiv:2310.10505)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, find_members
from agentrl.algos.advantages.sequences import discounted_sums, find_sequences
from agentrl.errors import ConfigError, Kind


def remax(batch: AdvantageBatch) -> tuple[Tensor, Tensor]:
    """A_t = R_t - b with R_t = sum of r_t' over t' >= t, and b the reward of the greedy rollout of the task.

    Reward 1, baseline 0.25: advantage 0.75 on every trained token. Returns are the R_t. The baseline is NaN if
    the greedy rollout failed; the advantage is then 0.

    Raises:
        ConfigError: `baselines` is missing.
    """
    if batch.baselines is None:
        raise ConfigError.at(
            "algorithm.adv_estimator",
            Kind.MISSING,
            "advantage estimator 'remax' needs baselines, the reward of a greedy rollout for each row",
        )
    sequences = find_sequences(batch, find_members(batch))
    returns = sequences.spread(discounted_sums(sequences.sums(batch.token_rewards), 1.0))
    baselines_B1 = batch.baselines.double()[:, None]
    advantages = torch.where(sequences.trained & ~baselines_B1.isnan(), returns - baselines_B1, 0.0)
    dtype = batch.token_rewards.dtype
    return advantages.to(dtype), returns.to(dtype)
