"""From rewards to advantages: the door to every estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from agentrl.algos.members import AdvantageBatch
from agentrl.algos.options import call
from agentrl.registry import Registry

ADVANTAGE_ESTIMATORS: Registry[Callable[..., tuple[Tensor, Tensor]]] = Registry(
    "advantage estimator", {"grpo": "agentrl.algos.grpo:grpo"}
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
    **options: object,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, both [B, T] and 0 off the mask. B rows (trajectories), T tokens.

    Args:
        name: a registered estimator: grpo.
        token_rewards: [B, T]. A rollout's reward stands once, on the last trained token of its last trajectory; its
            score is the sum over its rows.
        loss_mask: [B, T], true where a token is trained.
        uids: [B]; rows of one group share it.
        rollout_ids: [B]; rows of one rollout share it, count as one member of the group and get the same advantage.
            None: every row is a rollout.
        valid: [B]; false where the rollout failed for reasons outside the policy. None: all are valid.
        values, baselines: [B, T] and [B], for the estimators that need them.
        options: of the estimator; grpo: `norm_adv_by_std` (true).

    Raises:
        ConfigError: an option the estimator does not take.
        UnknownNameError: no such estimator.
    """
    ids = list(map(str, range(len(uids)))) if rollout_ids is None else rollout_ids
    validity = [True] * len(uids) if valid is None else valid
    batch = AdvantageBatch(token_rewards, loss_mask, uids, ids, validity, values, baselines)
    return call(f"advantage estimator '{name}'", ADVANTAGE_ESTIMATORS.get(name), batch, options)
