"""Compute advantages from rewards with any registered estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch
from agentrl.algos.options import call
from agentrl.algos.registries import ADVANTAGE_ESTIMATORS as ADVANTAGE_ESTIMATORS
from agentrl.algos.user_functions import wrong_tensors


def estimate_advantages(
    name: str,
    token_rewards: Tensor,
    loss_mask: Tensor,
    uids: Sequence[str],
    *,
    rollout_ids: Sequence[str] | None = None,
    valid: Sequence[bool] | None = None,
    values: Tensor | None = None,
    baselines: Tensor | None = None,
    turn_rewards: Tensor | None = None,
    step_ends: Tensor | None = None,
    observation_keys: Sequence[Sequence[str | None]] | None = None,
    components: Mapping[str, Tensor] | None = None,
    **options: object,
) -> tuple[Tensor, Tensor]:
    """Compute advantages and returns, both [B, T] and 0 outside the mask. B rows (trajectories), T tokens.

    Args:
        name: a registered estimator; brackets contain its options with their defaults:
            these compare a rollout's reward with the rewards of its group: grpo (norm_adv_by_std: true), dr_grpo,
            grpo_passk (norm_adv_by_std: true), rloo, opo, gpg, reinforce_plus_plus_baseline, gdpo (gdpo_reward_keys,
            gdpo_reward_weights, norm_adv_by_std: true; reads `components`);
            these use token-level returns: remax (reads `baselines`), reinforce_plus_plus (gamma: 1), gae (gamma: 1,
            lam: 1, whiten: true; reads `values`);
            these compare turns or steps within the group: grpo_process (norm_adv_by_std: true), grpo_turn (gamma: 1,
            norm_adv_by_std: true), mt_grpo (turn_advantage_weight: 1, norm_adv_by_std: true), gigpo
            (step_advantage_weight: 1, gamma: 0.95, norm_adv_by_std: true; reads `observation_keys`);
            grpo_vectorized and rloo_vectorized are aliases of grpo and rloo.
        token_rewards: [B, T]. A rollout's reward appears once, on the last trained token of its last trajectory. The
            rollout's score is the sum over its rows. A reward on an untrained token is added to the trained token
            before it.
        loss_mask: [B, T], true where a token is trained.
        uids: [B]; rows of one group have the same uid.
        rollout_ids: [B]; rows of one rollout have the same id and count as one member of the group.
            None: every row is a rollout.
        valid: [B]; false if the rollout failed for reasons outside the policy. Invalid rollouts are excluded from all
            means and get advantage 0. None: all rollouts are valid.
        values, baselines: [B, T] and [B], for the estimators that need them.
        turn_rewards, step_ends, observation_keys, components: as in `AdvantageBatch`.
        options: options of the estimator, as listed above.

    Raises:
        ConfigError: the estimator has no such option, or an input that it reads is missing.
        UnknownNameError: there is no such estimator.
    """
    ids = list(map(str, range(len(uids)))) if rollout_ids is None else rollout_ids
    validity = [True] * len(uids) if valid is None else valid
    batch = AdvantageBatch(
        token_rewards,
        loss_mask,
        uids,
        ids,
        validity,
        values,
        baselines,
        turn_rewards,
        step_ends,
        observation_keys,
        components or {},
    )
    check = partial(wrong_tensors, names=("advantages", "returns"), shape=loss_mask.shape, mask=loss_mask)
    return call(f"advantage estimator '{name}'", ADVANTAGE_ESTIMATORS.get(name), batch, options, check)
