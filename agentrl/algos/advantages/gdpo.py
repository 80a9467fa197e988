"""GDPO: each reward is standardised separately within its group, then summed (Liu et al. 2026, arXiv:2601.05242)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, Members, find_members
from agentrl.algos.advantages.normalization import standardised_in_groups, whitened
from agentrl.errors import ConfigError, Kind, suggestion


def gdpo(
    batch: AdvantageBatch,
    *,
    gdpo_reward_keys: Sequence[str] = (),
    gdpo_reward_weights: Sequence[float] = (),
    norm_adv_by_std: bool = True,
) -> tuple[Tensor, Tensor]:
    """s_i = sum over k of w_k * (r_ki - mean(r_k)) / (std(r_k) + 1e-6), then whitened over all trained tokens.

    Default keys: the names of all rewards except `score`; if there are none, the score is used. Default weights: 1.
    Example: three rollouts with the rewards (1, 0), (0, 0), (1, 1). The standardised rewards are (0.577, -0.577),
    (-1.155, -0.577), (0.577, 1.155), so s is 0, -1.732, 1.732. Whitened, with one token per rollout: 0, -1, 1. A group
    of one, or with all rewards equal, has advantage 0. The returns equal the advantages.

    Raises:
        ConfigError: an unknown key, a wrong number of weights, or a reward that is not finite.
    """
    members = find_members(batch)
    rewards_MK = _rewards(batch, members, tuple(gdpo_reward_keys))
    weights = tuple(gdpo_reward_weights) or (1.0,) * rewards_MK.shape[1]
    if len(weights) != rewards_MK.shape[1]:
        raise ConfigError.at(
            "algorithm.gdpo_reward_weights",
            Kind.WRONG_VALUE,
            f"gdpo_reward_weights has {len(weights)} weights for {rewards_MK.shape[1]} rewards, expected one for each",
        )
    there = members.valid[:, None]
    apart = [standardised_in_groups(each[:, None], there, members, norm_adv_by_std) for each in rewards_MK.unbind(1)]
    sums = (torch.cat(apart, dim=1) * rewards_MK.new_tensor(weights)).sum(1)
    compared = torch.cat(apart, dim=1).any(1)
    advantages = whitened(members.spread(sums, batch.loss_mask), members.trained(batch.loss_mask))
    result = torch.where(compared[members.of_row, None], advantages, 0.0).to(batch.token_rewards.dtype)
    return result, result


def _rewards(batch: AdvantageBatch, members: Members, keys: tuple[str, ...]) -> Tensor:
    """Return the rewards of each rollout, [M, K]."""
    keys = keys or tuple(key for key in batch.components if key != "score")
    if not keys:
        return members.scores[:, None]
    return torch.stack([_component(batch, members, key) for key in keys], dim=1)


def _component(batch: AdvantageBatch, members: Members, key: str) -> Tensor:
    if key not in batch.components:
        raise ConfigError.at(
            "algorithm.gdpo_reward_keys",
            Kind.NOT_FOUND,
            f"gdpo_reward_keys: the rollouts have no reward '{key}': {suggestion(key, batch.components)}",
        )
    rewards = torch.zeros_like(members.scores)
    rewards[members.of_row] = batch.components[key].to(rewards)  # all rows of a rollout have the same value
    if not rewards[members.valid].isfinite().all():
        row = next(row for row, member in enumerate(members.of_row) if not rewards[member].isfinite())
        raise ConfigError.at(
            "algorithm.gdpo_reward_keys",
            Kind.WRONG_VALUE,
            f"reward '{key}' of row {row} (task '{batch.uids[row]}') is {rewards[members.of_row[row]]}",
        )
    return rewards
