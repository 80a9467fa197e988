"""From rewards to advantages: the door to every estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from agentrl.algos.members import AdvantageBatch
from agentrl.algos.options import call
from agentrl.registry import Registry

ADVANTAGE_ESTIMATORS: Registry[Callable[..., tuple[Tensor, Tensor]]] = Registry(
    "advantage estimator",
    {
        "grpo": "agentrl.algos.grpo:grpo",
        "dr_grpo": "agentrl.algos.dr_grpo:dr_grpo",
        "grpo_passk": "agentrl.algos.grpo_passk:grpo_passk",
        "rloo": "agentrl.algos.rloo:rloo",
        "remax": "agentrl.algos.remax:remax",
        "reinforce_plus_plus": "agentrl.algos.reinforce_plus_plus:reinforce_plus_plus",
        "reinforce_plus_plus_baseline": "agentrl.algos.reinforce_plus_plus_baseline:reinforce_plus_plus_baseline",
        "opo": "agentrl.algos.opo:opo",
        "gpg": "agentrl.algos.group_policy_gradient:gpg",
        "gdpo": "agentrl.algos.gdpo:gdpo",
        "gae": "agentrl.algos.gae:gae",
        "grpo_process": "agentrl.algos.grpo_process:grpo_process",
        "grpo_turn": "agentrl.algos.grpo_turn:grpo_turn",
        "mt_grpo": "agentrl.algos.mt_grpo:mt_grpo",
        "gigpo": "agentrl.algos.gigpo:gigpo",
    },
    aliases={"grpo_vectorized": "grpo", "rloo_vectorized": "rloo"},
)
"""name -> `function(AdvantageBatch, **options) -> (advantages, returns)`."""


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
    """Advantages and returns, both [B, T] and 0 off the mask. B rows (trajectories), T tokens.

    Args:
        name: a registered estimator:
            grpo (option norm_adv_by_std: true), dr_grpo, grpo_passk (norm_adv_by_std: true), rloo, opo, gpg,
            reinforce_plus_plus_baseline, gdpo (gdpo_reward_keys, gdpo_reward_weights, norm_adv_by_std: true; reads
            `components`): a rollout's reward against its group's;
            remax (reads `baselines`), reinforce_plus_plus (gamma: 1), gae (gamma: 1, lam: 1, whiten: true; reads
            `values`): returns of tokens;
            grpo_process (norm_adv_by_std: true), grpo_turn (gamma: 1, norm_adv_by_std: true), mt_grpo
            (turn_advantage_weight: 1, norm_adv_by_std: true), gigpo (step_advantage_weight: 1, gamma: 0.95,
            norm_adv_by_std: true; reads `observation_keys`): turns or steps against those of the group;
            grpo_vectorized and rloo_vectorized are grpo and rloo.
        token_rewards: [B, T]. A rollout's reward stands once, on the last trained token of its last trajectory; its
            score is the sum over its rows. A reward on an untrained token counts as the trained token's before it.
        loss_mask: [B, T], true where a token is trained.
        uids: [B]; rows of one group share it.
        rollout_ids: [B]; rows of one rollout share it, count as one member of the group and get the same advantage.
            None: every row is a rollout.
        valid: [B]; false where the rollout failed for reasons outside the policy: it is no part of any mean and gets 0.
            None: all are valid.
        values, baselines: [B, T] and [B], for the estimators that need them.
        turn_rewards, step_ends, observation_keys, components: as in `AdvantageBatch`, where they are read.
        options: of the estimator, as listed above.

    Raises:
        ConfigError: an option the estimator does not take, or what it reads is missing.
        UnknownNameError: no such estimator.
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
    return call(f"advantage estimator '{name}'", ADVANTAGE_ESTIMATORS.get(name), batch, options)
