"""`actor.*` and `ref.*`: the trained policy, its optimizer and its reference."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from agentrl.config.base import Section
from agentrl.config.kinds import KLKind
from agentrl.config.model import Modules
from agentrl.config.presets import Aggregation

Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimConfig(Section):
    """The optimizer and its schedule. A schedule counts updates, not steps."""

    name: Literal["adamw", "muon"] = "adamw"
    """adamw; muon uses Muon on hidden matrices and AdamW on everything else."""
    lr: PositiveFloat = 1e-6
    """Peak learning rate of AdamW."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of AdamW's two averages."""
    eps: PositiveFloat = 1e-8
    """AdamW's epsilon."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay."""
    muon_lr: PositiveFloat = 0.02
    """Peak learning rate of Muon."""
    muon_momentum: float = Field(default=0.95, ge=0, lt=1)
    """Momentum of Muon."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the learning rate after warm-up."""
    lr_warmup_steps: NonNegativeInt = 0
    """Updates over which the learning rate rises from 0."""
    lr_warmup_steps_ratio: float = Field(default=0.0, ge=0, le=1)
    """The same as a share of all updates, where lr_warmup_steps is 0."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Where linear and cosine end, as a share of the peak."""
    total_updates: PositiveInt | None = None
    """Updates over which linear and cosine run down; the run's own number if none is given."""


class PolicyLossConfig(Section):
    """Which policy loss, and what only some of them take; null leaves each loss its own default."""

    loss_mode: str | None = None
    """A loss by name (vanilla, gspo, cispo, ...) or as file.py:function; null: the one of algorithm.name."""
    clip_cov_ratio: PositiveFloat | None = None
    """clip_cov: share of tokens that take no part."""
    clip_cov_lb: float | None = None
    """clip_cov: smallest covariance of such a token."""
    clip_cov_ub: float | None = None
    """clip_cov: largest covariance of such a token."""
    kl_cov_ratio: PositiveFloat | None = None
    """kl_cov: share of tokens that are held by a KL penalty."""
    ppo_kl_coef: NonNegativeFloat | None = None
    """kl_cov: coefficient of that penalty."""
    options: dict[str, JsonValue] = {}
    """Further options of the loss, by its own names (docs/algorithms.md)."""


class ActorConfig(Section):
    """The trained policy."""

    backend: Literal["torch", "megatron"] = "torch"
    """What trains."""
    device: str = "auto"
    """Device of the torch backend: auto takes a CUDA GPU where there is one."""
    autocast: Literal["float32", "bfloat16", "float16"] | None = None
    """Number type of activations where it differs from the weights': bfloat16 for mixed precision."""
    optim: OptimConfig = OptimConfig()
    """The optimizer."""
    ppo_mini_batch_size: PositiveInt | None = None
    """Tasks (groups) an update; none given: the whole step in one update."""
    ppo_epochs: PositiveInt = 1
    """Passes over a step's samples."""
    use_dynamic_bsz: bool = True
    """Cut micro-batches by tokens (ppo_max_token_len_per_gpu); false: by samples (ppo_micro_batch_size_per_gpu)."""
    ppo_max_token_len_per_gpu: PositiveInt = 16384
    """Token budget of a micro-batch: what is shared counts once, padding and copied keys count; a CPU may cut finer."""
    ppo_micro_batch_size_per_gpu: PositiveInt | None = None
    """Most samples in a micro-batch, whatever their length."""
    share_prefixes: bool = True
    """Compute what samples begin with alike once a micro-batch, where the model allows it; same gradient."""
    freeze_modules: Modules = ()
    """Modules whose weights stay as they are, by name; * stands for any text (model.layers.0.*, *.mlp.*)."""
    param_offload: bool = False
    """Keep the weights in CPU memory except while a step trains or scores; on a CPU nothing changes."""
    optimizer_offload: bool = False
    """Keep the optimizer's averages in CPU memory except while it updates; on a CPU nothing changes."""
    grad_clip: PositiveFloat = 1.0
    """Largest norm of the gradient; longer ones are scaled down to it."""
    policy_loss: PolicyLossConfig = PolicyLossConfig()
    """Which policy loss."""
    clip_ratio: NonNegativeFloat | None = None
    """Clip of the ratio on both sides, where the two below are not given; null: the loss's own, 0.2 for vanilla."""
    clip_ratio_low: float | None = Field(default=None, ge=0, le=1)
    """Clip of the ratio below 1; 1 is none at all."""
    clip_ratio_high: NonNegativeFloat | None = None
    """Clip of the ratio above 1 (clip-higher)."""
    clip_ratio_c: float | None = Field(default=None, gt=1)
    """vanilla: dual clip, the bound on the ratio where the advantage is negative; null: 3."""
    tau_pos: PositiveFloat | None = None
    """sapo: temperature of the gate where the advantage is positive."""
    tau_neg: PositiveFloat | None = None
    """sapo: the same where it is negative."""
    loss_agg_mode: Aggregation | None = None
    """How the loss of tokens becomes one number; null: as algorithm.name has it, token-mean for most."""
    use_kl_loss: bool = False
    """Add the KL divergence to the reference policy to the loss."""
    kl_loss_coef: NonNegativeFloat = 0.001
    """Its coefficient."""
    kl_loss_type: KLKind = "low_var_kl"
    """Its estimator: kl (k1), abs, mse (k2) or low_var_kl (k3); kl+ and so on have the gradient of k2."""
    entropy_coeff: NonNegativeFloat = 0.0
    """Coefficient of the entropy bonus."""

    @model_validator(mode="after")
    def _dual_clip_above_high(self) -> Self:
        if self.clip_ratio_c is not None and self.clip_ratio_c <= 1 + self.clip_high:
            raise ValueError(f"clip_ratio_c must be above 1 + clip_ratio_high, {1 + self.clip_high:g}")
        return self

    @property
    def clip_low(self) -> float:
        """The clip below 1 of PPO's loss."""
        return self._clip(self.clip_ratio_low)

    @property
    def clip_high(self) -> float:
        """The clip above 1 of PPO's loss."""
        return self._clip(self.clip_ratio_high)

    def _clip(self, given: float | None) -> float:
        return next((each for each in (given, self.clip_ratio) if each is not None), 0.2)


class RefConfig(Section):
    """The reference policy of the KL term; loaded only where something needs it."""

    path: str | None = None
    """Folder of its model; none given: the policy as it is at the start, or without its LoRA adapter."""
    sync_steps: PositiveInt | None = None
    """Every so many steps the policy becomes the new reference (iterative RL); null: it stays as it is."""
    param_offload: bool = False
    """Keep its weights in CPU memory except while it scores; on a CPU, or where it is the policy's base, no change."""
