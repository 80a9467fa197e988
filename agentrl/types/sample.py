"""A sample: one trajectory with the per-token numbers that a loss needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.utils.short_repr import counted, short

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, repr=False)
class Sample:
    """One trajectory of T tokens, ready for training. Entry t of a list is about token t. For example,
    `old_logprobs[t]` is the log-probability of token t, which the model computes at position t - 1.

    Attributes:
        token_ids: [T]
        loss_mask: [T], 1 where the token is trained; the first entry is 0, because no token predicts it.
        temperatures: [T], the sampling temperature of each trained token.
        advantages: [T], 0 where the mask is 0; for demonstrations, the loss weight of the token.
        behaviour_logprobs: [T], log-probabilities at sampling time; None for demonstrations.
        old_logprobs: [T], log-probabilities under the policy at the start of the step, if the algorithm needs them.
        ref_logprobs: [T], log-probabilities under the reference policy, if the algorithm needs them.
        values: [T], the critic's value before each token is sampled, if the algorithm needs values.
        returns: [T], training targets of the critic; 0 where the mask is 0.
        importance_weights: [T], a factor of each token's loss, without gradient; None: all factors are 1.
        kl_coef: coefficient of the KL that was subtracted from the reward; 0 if no KL was subtracted.
        policy_versions: [T], policy version that sampled each trained token, 0 elsewhere; None for demonstrations.
        routed_experts: [R, layers, top k] integers, R < T: the experts of the first R tokens, if the engine or
            the policy recorded them.
        truncated: the rollout was cut off at a length limit.
        weight: the weight of the trajectory, a factor of the advantages.
        rollout_id: equal for all trajectories of a rollout. Means over sequences count a rollout as one sequence.
        uid: equal for all samples of a group; a mini-batch never splits a group.
    """

    token_ids: Sequence[int]
    loss_mask: Sequence[int]
    temperatures: Sequence[float]
    advantages: Sequence[float]
    behaviour_logprobs: Sequence[float] | None = None
    old_logprobs: Sequence[float] | None = None
    ref_logprobs: Sequence[float] | None = None
    values: Sequence[float] | None = None
    returns: Sequence[float] | None = None
    importance_weights: Sequence[float] | None = None
    kl_coef: float = 0.0
    policy_versions: Sequence[int] | None = None
    routed_experts: Tensor | None = None
    truncated: bool = False
    weight: float = 1.0
    rollout_id: str = ""
    uid: str = ""

    def __repr__(self) -> str:
        counts = (len(self.token_ids), "token"), (self.num_trained_tokens, "trained token")
        return f"Sample({short(self.rollout_id)}, {', '.join(counted(*each) for each in counts)})"

    @property
    def num_trained_tokens(self) -> int:
        """Number of tokens in the loss."""
        return sum(self.loss_mask)
