"""`algorithm.*`: where advantages come from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
)

from agentrl.config.base import Section
from agentrl.config.kinds import KLKind
from agentrl.config.learned_rewards import RewardTrainingConfig
from agentrl.config.presets import PRESETS, Preset
from agentrl.config.thresholds import Bounds, Rejection, read_rejection_bounds, read_rejections, read_weight_bounds
from agentrl.errors import suggestion

UnitInterval = Annotated[float, Field(ge=0, le=1)]


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


class KLControlConfig(Section):
    """How strongly a KL in the reward counts."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """fixed: kl_coef throughout. adaptive: it follows the measured KL towards target_kl."""
    kl_coef: NonNegativeFloat = 0.001
    """The coefficient, or what it begins with."""
    horizon: PositiveInt = 10000
    """adaptive: rollouts over which it is corrected."""
    target_kl: PositiveFloat = 0.1
    """adaptive: the KL that is aimed at, in nats a token."""


class FilterGroupsConfig(Section):
    """Dynamic sampling (DAPO): groups that teach nothing are replaced by further ones before a step is taken."""

    enable: bool = False
    """Draw further tasks until a step has all its groups."""
    metric: str = "score"
    """The reward, by its name, that must differ within a group; acc is the score where no reward is called so."""
    max_num_gen_batches: NonNegativeInt = 0
    """Most tasks a step draws, in batches of data.train_batch_size; then it goes on with what it has. 0: no limit."""


class AlgorithmConfig(Section):
    """How rollouts are credited. `name` selects a preset; the keys below change parts of it."""

    name: str = "grpo"
    """The preset: grpo, dr_grpo, rloo, gae (PPO), gspo, cispo, pairwise, dpo, rft, sft and more: docs/algorithms.md."""
    adv_estimator: str | None = None
    """How advantages are estimated, by name or as file.py:function; null: as `name` has it."""
    gamma: UnitInterval | None = None
    """Discount of later rewards, for estimators that take one; null: their own, 1 for most."""
    lam: UnitInterval | None = None
    """gae: how far advantages trust the critic (0) or the return (1); null: 1."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide a group's centred rewards by their standard deviation."""
    gdpo_reward_keys: tuple[str, ...] = ()
    """gdpo: the rewards that are normalised apart, by name; none given: all but score."""
    gdpo_reward_weights: tuple[float, ...] = ()
    """gdpo: their weights; none given: 1 each."""
    adv_options: dict[str, JsonValue] = {}
    """Further options of the estimator, by its own names (docs/algorithms.md)."""
    use_kl_in_reward: bool = False
    """Take the KL divergence to the reference policy from the reward of each token."""
    kl_penalty: KLKind = "kl"
    """Its estimator."""
    kl_ctrl: KLControlConfig = KLControlConfig()
    """Its coefficient."""
    filter_groups: FilterGroupsConfig = FilterGroupsConfig()
    """Dynamic sampling."""
    zero_variance_groups: Literal["keep", "drop"] = "keep"
    """What is done with rollouts of advantage 0: they count in the means of the loss, or are left out."""
    overlong_filter: bool = False
    """Leave rollouts that were cut off for their length out of the loss; statistics keep them."""
    rft_threshold: float = 1.0
    """rft: rollouts of this score or more are imitated."""
    beta: PositiveFloat = 0.1
    """Preferences: how strongly log-probabilities count."""
    pairing: Literal["best_worst", "best_random"] = "best_worst"
    """Preferences: whom the best of a group is compared with; random: any of a lower score."""
    length_normalized: bool = False
    """Preferences: compare mean log-probabilities of tokens in place of their sums."""
    rollout_correction: RolloutCorrectionConfig = RolloutCorrectionConfig()
    """What is done about samples of another policy."""
    reward_training: RewardTrainingConfig = RewardTrainingConfig()
    """How a reward model is trained, where that is what is trained."""

    @property
    def preset(self) -> Preset:
        """What `name` selects."""
        return PRESETS[self.name]

    @property
    def estimator(self) -> str:
        """The advantage estimator in force."""
        return self.adv_estimator or self.preset.adv_estimator

    @property
    def live(self) -> bool:
        """Whether groups are rollouts, live or stored, and not rows of `data.train_files`."""
        return self.preset.feed == "rollouts"

    @field_validator("name")
    @classmethod
    def _name_is_known(cls, value: str) -> str:
        if value not in PRESETS:
            raise ValueError(f"unknown algorithm '{value}': {suggestion(value, PRESETS)}")
        return value
