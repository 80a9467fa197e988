"""`algorithm.*`: how advantages are computed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
)

from agentrl.config.base import KLKind, Section
from agentrl.config.correction_bounds import (
    Bounds,
    Rejection,
    read_rejection_bounds,
    read_rejections,
    read_weight_bounds,
)
from agentrl.config.presets import PRESETS, Preset
from agentrl.config.reward_model import RewardTrainingConfig
from agentrl.config.uses import Options, Text, code
from agentrl.errors import suggestion

UnitInterval = Annotated[float, Field(ge=0, le=1)]


class RolloutCorrectionConfig(Section):
    """Correction for samples that are off-policy because of older weights, or because engine and backend differ.

    r is the probability of a sampled token under the weights at the start of the step (computed by the backend),
    divided by its probability at sampling time (recorded by the engine). Importance weights and rejections need r,
    which costs one more forward pass. See docs/off-policy.md.
    """

    bypass_mode: bool = True
    """Probabilities of the old policy, in the ratios of the loss. true: those that the engine recorded. false: those
    that the backend computes with the weights at the start of the step (decoupled PPO)."""
    rollout_is: Literal["token", "sequence"] | None = None
    """Importance weights on the loss. token: r of each token. sequence: product of r over the rollout. null: none."""
    rollout_is_threshold: float | Text = 2.0
    """Limit of the importance weights. A number: larger weights are truncated to this number (TIS). "0.5_5.0": weights
    outside the range become 0 (masked, IcePop)."""
    rollout_is_batch_normalize: bool = False
    """Divide the importance weights by their mean over the step."""
    rollout_rs: Text | None = None
    """Divergences by which tokens or rollouts are rejected (excluded from the loss), separated by commas: token_k1,
    token_k2, token_k3, seq_sum_k1, seq_mean_k1, seq_max_k3 and so on. null: nothing is rejected."""
    rollout_rs_threshold: float | Text | None = None
    """Limit of rollout_rs: the largest allowed divergence. For k1: an allowed range "lower_upper" of 1 / r, or only the
    upper end u for the range 1/u to u. Give one limit for all rejections, or one for each, separated by commas."""
    loss_type: Literal["ppo_clip", "reinforce"] = "ppo_clip"
    """Loss in bypass mode. ppo_clip: the configured policy loss. reinforce: REINFORCE with the weights of
    `rollout_is`."""

    @property
    def corrects(self) -> bool:
        """Whether weights or rejections are configured."""
        return self.rollout_is is not None or self.rollout_rs is not None

    @property
    def weight_bounds(self) -> Bounds:
        """Bounds of the importance weights.

        Without a lower bound, larger weights are truncated. With a lower bound, weights outside the bounds are masked.
        """
        return read_weight_bounds(self.rollout_is_threshold)

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """The configured rejections with their bounds."""
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


class KLControlConfig(Section):
    """Coefficient of the KL penalty in the reward."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """fixed: always kl_coef. adaptive: the coefficient changes so that the measured KL approaches target_kl."""
    kl_coef: NonNegativeFloat = 0.001
    """The coefficient; adaptive: its first value."""
    horizon: PositiveInt = 10000
    """adaptive: number of rollouts over which the coefficient adapts; larger is slower."""
    target_kl: PositiveFloat = 0.1
    """adaptive: target KL, in nats per token."""


class FilterGroupsConfig(Section):
    """Dynamic sampling (DAPO): groups with equal rewards are dropped and replaced before the update."""

    enable: bool = False
    """Drop groups with equal rewards, and sample more tasks until the step has all its groups."""
    metric: Text = "score"
    """Name of the reward that must differ within a group; acc means the score if no reward is named acc."""
    max_num_gen_batches: NonNegativeInt = 0
    """Maximum number of batches (data.train_batch_size tasks each) sampled per step. At the limit, the step uses the
    groups it has. 0: no limit."""


class AlgorithmConfig(Section):
    """The algorithm: `name` selects a preset; the other keys override the preset or set its options."""

    name: Text = "grpo"
    """The preset: grpo, dr_grpo, rloo, gae (PPO), gspo, cispo, pairwise, dpo, rft, sft and more: docs/algorithms.md."""
    adv_estimator: Annotated[str, code("advantage estimator")] | None = None
    """Advantage estimator, by name or as file.py:function; null: as set by `name`."""
    gamma: UnitInterval | None = None
    """Discount factor, for estimators that have one; null: the default of the estimator, 1 for most."""
    lam: UnitInterval | None = None
    """gae: lambda. 0: one-step temporal difference; 1: full return minus value. null: 1."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide advantages by the standard deviation of the group's rewards; false: only subtract the group's mean."""
    gdpo_reward_keys: tuple[Text, ...] = ()
    """gdpo: names of the rewards that are normalised separately; empty: all except score."""
    gdpo_reward_weights: tuple[float, ...] = ()
    """gdpo: weights of the rewards in gdpo_reward_keys; empty: 1 each."""
    adv_options: Options = {}
    """Further options of the estimator, by name (docs/algorithms.md)."""
    use_kl_in_reward: bool = False
    """Subtract a KL penalty against the reference policy from the reward of each token."""
    kl_penalty: KLKind = "kl"
    """Estimator of the KL in the reward."""
    kl_ctrl: KLControlConfig = KLControlConfig()
    """Coefficient of the KL in the reward."""
    filter_groups: FilterGroupsConfig = FilterGroupsConfig()
    """Dynamic sampling."""
    zero_variance_groups: Literal["keep", "drop"] = "keep"
    """Treatment of rollouts whose advantages are all 0. keep: their tokens count in the means of the loss. drop: the
    rollouts are excluded from the loss."""
    overlong_filter: bool = False
    """Rollouts that reached a length limit do not count in the loss; they still count in the group's baseline."""
    rft_threshold: float = 1.0
    """rft: train on rollouts with at least this score."""
    beta: PositiveFloat = 0.1
    """Preference losses: scale of the log-probability differences."""
    pairing: Literal["best_worst", "best_random"] = "best_worst"
    """Preference losses except ranking, and reward_pairs: pair the best rollout of a group with the worst, or with a
    random rollout of lower score."""
    length_normalized: bool = False
    """Preference losses: compare the mean log-probability per token instead of the sum."""
    rollout_correction: RolloutCorrectionConfig = RolloutCorrectionConfig()
    """Correction of off-policy samples."""
    reward_training: RewardTrainingConfig = RewardTrainingConfig()
    """Options of reward model training (reward_pairs, reward_outcomes, reward_steps)."""

    @property
    def preset(self) -> Preset:
        """The preset selected by `name`."""
        return PRESETS[self.name]

    @property
    def estimator(self) -> str:
        """The advantage estimator: `adv_estimator`, else the preset's."""
        return self.adv_estimator or self.preset.adv_estimator

    @property
    def live(self) -> bool:
        """Whether `trainer.mode=train` trains the algorithm on live rollouts, not on rows of `data.train_files`."""
        return self.preset.feed == "rollouts"

    @field_validator("name")
    @classmethod
    def _name_is_known(cls, value: str) -> str:
        if value not in PRESETS:
            raise ValueError(f"unknown algorithm '{value}': {suggestion(value, PRESETS)}")
        return value
