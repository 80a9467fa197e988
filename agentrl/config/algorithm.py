"""`algorithm.*`: where advantages come from."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationInfo, field_validator

from agentrl.config.base import Section
from agentrl.config.thresholds import Bounds, Rejection, read_rejection_bounds, read_rejections, read_weight_bounds


class RolloutCorrectionConfig(Section):
    """What is done about samples of another policy: older weights, or an engine that computes otherwise.

    r is backend / engine: the probability of a sampled token under the weights at the start of the step, over that it
    was sampled with. Weights and rejections need r, so they cost a forward pass more; docs/off-policy.md has it all.
    """

    bypass_mode: bool = True
    """true: the loss takes its ratios to what the engine sampled with. false: to the weights at the start of the step,
    computed anew (decoupled PPO)."""
    rollout_is: Literal["token", "sequence"] | None = None
    """Importance weights r on the loss: of each token, or the product over its rollout; null: none."""
    rollout_is_threshold: float | str = 2.0
    """A number: weights are truncated at it (TIS). "0.5_5.0": weights outside are 0 (masked, IcePop)."""
    rollout_is_batch_normalize: bool = False
    """Divide the weights by their mean over the step."""
    rollout_rs: str | None = None
    """Rejection: tokens or rollouts whose divergence is too large are left out: token_k1, token_k2, token_k3,
    seq_sum_k1, seq_mean_k1, seq_max_k3 and so on, several with commas between."""
    rollout_rs_threshold: float | str | None = None
    """What is too large: a largest divergence; for k1 a range "lower_upper" of engine / backend, or its upper end
    alone; one for all, or one each with commas between."""
    loss_type: Literal["ppo_clip", "reinforce"] = "ppo_clip"
    """The loss in bypass mode: the clipped ratio, or REINFORCE with the weights of `rollout_is`."""

    @property
    def corrects(self) -> bool:
        """Whether weights or rejections are asked for."""
        return self.rollout_is is not None or self.rollout_rs is not None

    @property
    def weight_bounds(self) -> Bounds:
        """Of importance weights; without a lower one they are truncated, else masked."""
        return read_weight_bounds(self.rollout_is_threshold)

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """All that are asked for."""
        if self.rollout_rs is None or self.rollout_rs_threshold is None:
            return ()
        return read_rejection_bounds(read_rejections(self.rollout_rs), self.rollout_rs_threshold)

    @field_validator("rollout_is_threshold")
    @classmethod
    def _weight_bounds_can_be_read(cls, value: float | str) -> float | str:
        read_weight_bounds(value)
        return value

    @field_validator("rollout_rs")
    @classmethod
    def _rejections_are_known(cls, value: str | None) -> str | None:
        if value is not None:
            read_rejections(value)
        return value

    @field_validator("rollout_rs_threshold")
    @classmethod
    def _rejection_bounds_can_be_read(cls, value: float | str | None, info: ValidationInfo) -> float | str | None:
        names = info.data.get("rollout_rs")
        if value is not None and names is not None:
            read_rejection_bounds(read_rejections(names), value)
        return value


class AlgorithmConfig(Section):
    """Where advantages come from. `name` selects a preset; the keys below change parts of it."""

    name: Literal["grpo", "sft"] = "grpo"
    """grpo: group-relative policy optimisation over live rollouts. sft: imitation of saved conversations."""
    adv_estimator: Literal["grpo"] = "grpo"
    """How advantages are estimated."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide a group's centred rewards by their standard deviation."""
    rollout_correction: RolloutCorrectionConfig = RolloutCorrectionConfig()
    """What is done about samples of another policy."""
