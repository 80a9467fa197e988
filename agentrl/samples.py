"""A sample: one trajectory with the numbers a loss reads for each of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sample:
    """One trajectory of T tokens, ready to be trained on. Index t belongs to the token at t, not to its predictor.

    Attributes:
        token_ids: [T]
        loss_mask: [T], 1 where the token is trained; its first entry is 0, nothing predicts it.
        temperatures: [T], the temperature each trained token was sampled at.
        advantages: [T], 0 off the mask; for demonstrations the weight of the token.
        behaviour_logprobs: [T] by the policy that sampled, None for demonstrations.
        old_logprobs: [T] by the policy at the start of the step, where the algorithm asks for them.
        ref_logprobs: [T] by the reference policy, where the algorithm asks for them.
        values: [T] by the critic before the token was sampled, where the algorithm asks for them.
        returns: [T], what the critic is to predict there; 0 off the mask.
        importance_weights: [T], constants that the loss of each token is multiplied by; None: 1 each.
        kl_coef: the coefficient of the KL that was taken from its reward; 0 where none was.
        policy_versions: [T], whose weights sampled each trained token, 0 off the mask; None for demonstrations.
        routed_experts: [R, layers, top k] integers, R < T, where the engine said them: the experts that the first R
            tokens were sent to.
        truncated: the rollout was cut off for its length.
        rollout_id: trajectories of one rollout share it; sequence means count the rollout once.
        uid: samples of one group share it; a mini-batch never cuts a group.
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
    rollout_id: str = ""
    uid: str = ""

    @property
    def num_trained_tokens(self) -> int:
        """How many tokens the loss reads."""
        return sum(self.loss_mask)
