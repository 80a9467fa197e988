"""`actor.*`, `ref.*` and `critic.*`: policy, reference policy and value model, with their optimizers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from agentrl.capabilities import known_backend
from agentrl.config.base import KLKind, Section
from agentrl.config.megatron import MegatronConfig
from agentrl.config.model import Modules
from agentrl.config.presets import Aggregation
from agentrl.config.uses import Folder, Options, Text, code

Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimConfig(Section):
    """The optimizer and its learning-rate schedule. The schedule counts updates, not steps."""

    name: Literal["adamw", "muon"] = "adamw"
    """adamw: AdamW. muon: Muon for hidden matrices, AdamW for all other weights."""
    lr: PositiveFloat | None = None
    """Peak learning rate of AdamW. null for the actor: the run chooses the value by algorithm, model size and LoRA, and
    prints it (1e-6 for RL without LoRA, if the model has at least 0.5B parameters). null for the critic or an online
    reward model: 1e-6."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay rates of AdamW's two moving averages."""
    eps: PositiveFloat = 1e-8
    """AdamW's epsilon."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay."""
    muon_lr: PositiveFloat = 0.02
    """Peak learning rate of Muon."""
    muon_momentum: float = Field(default=0.95, ge=0, lt=1)
    """Momentum of Muon."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate changes after warm-up."""
    lr_warmup_steps: NonNegativeInt = 0
    """Number of updates over which the learning rate rises linearly to its peak. The first of N updates has 1/N of the
    peak."""
    lr_warmup_steps_ratio: float = Field(default=0.0, ge=0, le=1)
    """Warm-up as a fraction of all updates; used if lr_warmup_steps is 0."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate of the schedules linear and cosine, as a fraction of the peak."""
    total_updates: PositiveInt | None = None
    """Number of updates over which the schedules linear and cosine decay; null: all updates of the run."""

    @property
    def peak_lr(self) -> float:
        """`lr`, or 1e-6 if it is null. A run replaces null before it starts."""
        return 1e-6 if self.lr is None else self.lr


class PolicyLossConfig(Section):
    """The policy loss and its options. A null option takes the default of the chosen loss."""

    loss_mode: Annotated[str, code("policy loss")] | None = None
    """Name of a loss (vanilla, gspo, cispo, ...) or file.py:function; null: the loss of algorithm.name."""
    clip_cov_ratio: PositiveFloat | None = None
    """clip_cov: fraction of tokens excluded from the loss."""
    clip_cov_lb: float | None = None
    """clip_cov: smallest covariance of an excluded token."""
    clip_cov_ub: float | None = None
    """clip_cov: largest covariance of an excluded token."""
    kl_cov_ratio: PositiveFloat | None = None
    """kl_cov: fraction of tokens that get a KL penalty."""
    ppo_kl_coef: NonNegativeFloat | None = None
    """kl_cov: coefficient of the KL penalty."""
    options: Options = {}
    """Further options of the loss, by name (docs/algorithms.md)."""


class ActorConfig(Section):
    """The trained policy."""

    backend: Annotated[str, AfterValidator(known_backend), code("backend")] = "torch"
    """The training backend: torch, megatron (docs/megatron.md), or your own as `path/to/file.py:NAME`
    (docs/extending.md)."""
    device: Text = "auto"
    """Device of the torch backend; auto: a CUDA GPU if available."""
    autocast: Literal["float32", "bfloat16", "float16"] | None = None
    """Data type of activations, for mixed precision (for example bfloat16); null: the data type of the weights."""
    optim: OptimConfig = OptimConfig()
    """The optimizer."""
    ppo_mini_batch_size: PositiveInt | None = None
    """Tasks (groups) per update; null: one update per step."""
    ppo_epochs: PositiveInt = 1
    """Passes over the samples of a step."""
    use_dynamic_bsz: bool = True
    """What limits a micro-batch. true: its number of tokens (ppo_max_token_len_per_gpu). false: its number of samples
    (ppo_micro_batch_size_per_gpu)."""
    ppo_max_token_len_per_gpu: PositiveInt = 16384
    """Maximum number of tokens in a micro-batch. A shared prefix counts once. Padding counts too. Without
    FlexAttention, copies of the attention keys of a shared prefix also count (see flex_attention). Micro-batches may
    be smaller on a CPU."""
    ppo_micro_batch_size_per_gpu: PositiveInt | None = None
    """Maximum number of samples in a micro-batch, whatever their length."""
    share_prefixes: bool = True
    """Compute shared prefixes of samples once per micro-batch, if the model allows it. The gradient is the same as
    without sharing."""
    flex_attention: bool = True
    """Compute attention over shared prefixes with torch's FlexAttention, without copies of attention keys, if the
    model allows it; no effect on a CPU, or without share_prefixes."""
    ulysses_sequence_parallel_size: PositiveInt = 1
    """Number of processes that compute the same samples together, each for a slice of the positions; for long
    contexts."""
    freeze_modules: Modules = ()
    """Names of modules whose weights are frozen; `*` matches any text (`model.layers.0.*`, `*.mlp.*`)."""
    param_offload: bool = False
    """Keep the weights in CPU memory except during updates and the computation of log-probabilities; no effect on a
    CPU."""
    optimizer_offload: bool = False
    """Keep the optimizer state in CPU memory except during an update; no effect on a CPU."""
    fsdp_size: PositiveInt | None = None
    """Number of processes that shard one copy of the weights (HSDP). It must divide the number of all processes. null:
    all processes shard one copy."""
    reshard_after_forward: bool = True
    """Free the gathered weights of a layer after each pass. false: each process holds all weights and gradients during
    an update; the processes exchange weights and gradients once per update instead of once per micro-batch. Also
    applies to the critic. No effect with one process."""
    megatron: MegatronConfig = MegatronConfig()
    """Parallel layout and options of the Megatron backend."""
    routed_experts: bool = False
    """Record the experts that the policy's router chooses when old log-probabilities are computed, and train with the
    same experts in all updates of the step (R2). For mixture-of-experts models. Needs old log-probabilities, for
    example with algorithm.rollout_correction.bypass_mode=false."""
    grad_clip: PositiveFloat = 1.0
    """Maximum gradient norm; larger gradients are scaled down."""
    policy_loss: PolicyLossConfig = PolicyLossConfig()
    """The policy loss."""
    clip_ratio: NonNegativeFloat | None = None
    """Clip range of the ratio on both sides of 1 (gmpo: range of the ratio's logarithm on both sides of 0).
    clip_ratio_low replaces this range on the lower side, and clip_ratio_high on the upper side. null: the default of
    the loss, 0.2 for vanilla."""
    clip_ratio_low: float | None = Field(default=None, ge=0, le=1)
    """Clip range of the ratio below 1. With the value 1, there is no lower clip."""
    clip_ratio_high: NonNegativeFloat | None = None
    """Clip range of the ratio above 1 (clip-higher)."""
    clip_ratio_c: float | None = Field(default=None, gt=1)
    """vanilla: dual clip, the upper bound of the ratio for negative advantages; null: 3. dppo: upper bound of the
    ratio for all advantages; null: 20."""
    tau_pos: PositiveFloat | None = None
    """sapo: temperature of the gate for positive advantages."""
    tau_neg: PositiveFloat | None = None
    """sapo: temperature of the gate for advantages that are not positive."""
    loss_agg_mode: Aggregation | None = None
    """How token losses are aggregated to one number. null: the default of algorithm.name, usually token-mean."""
    use_kl_loss: bool = False
    """Add a KL penalty against the reference policy to the loss."""
    kl_loss_coef: NonNegativeFloat = 0.001
    """Coefficient of the KL loss."""
    kl_loss_type: KLKind = "low_var_kl"
    """Estimator of the KL loss: kl (k1), abs, mse (k2) or low_var_kl (k3). With a suffix + (kl+, ...), the gradient
    is that of k2."""
    entropy_coeff: NonNegativeFloat = 0.0
    """Coefficient of the entropy bonus."""

    @model_validator(mode="after")
    def _dual_clip_above_high(self) -> Self:
        if self.clip_ratio_c is not None and self.clip_ratio_c <= 1 + self.clip_high:
            raise ValueError(f"clip_ratio_c must be above 1 + clip_ratio_high, {1 + self.clip_high:g}")
        return self

    @property
    def clip_low(self) -> float:
        """The lower clip range of PPO's loss."""
        return self._clip(self.clip_ratio_low)

    @property
    def clip_high(self) -> float:
        """The upper clip range of PPO's loss."""
        return self._clip(self.clip_ratio_high)

    def _clip(self, given: float | None) -> float:
        return next((each for each in (given, self.clip_ratio) if each is not None), 0.2)


class RefConfig(Section):
    """The reference policy of KL penalties and preference losses; loaded only if it is needed."""

    path: Folder | None = None
    """Model folder of the reference policy. null: the policy at the start of the run; with LoRA, the policy without its
    adapter."""
    sync_steps: PositiveInt | None = None
    """Copy the current policy to the reference every N steps (iterative RL); null: never."""
    param_offload: bool = False
    """Keep the reference weights in CPU memory except while the reference computes log-probabilities. No effect on a
    CPU, or if the reference is the base model of the policy."""
    ulysses_sequence_parallel_size: PositiveInt | None = None
    """Number of processes that compute the same samples together; null: the actor's value."""


class HeadOptimConfig(OptimConfig):
    """The optimizer of a critic or an online reward model. Its default learning rate is higher than the actor's."""

    lr: PositiveFloat | None = 1e-5
    """Peak learning rate of AdamW."""


class CriticConfig(Section):
    """The value model; loaded only if the advantage estimator needs values."""

    path: Folder | None = None
    """Model folder of the critic; null: the policy's model. A value head is added if the folder has none."""
    optim: HeadOptimConfig = HeadOptimConfig()
    """Optimizer of the critic."""
    ppo_mini_batch_size: PositiveInt | None = None
    """Tasks (groups) per update; null: the actor's value."""
    ppo_epochs: PositiveInt | None = None
    """Passes over the samples of a step; null: the actor's value."""
    ppo_max_token_len_per_gpu: PositiveInt | None = None
    """Maximum number of tokens in a micro-batch; null: the actor's value."""
    ulysses_sequence_parallel_size: PositiveInt | None = None
    """Number of processes that compute the same samples together; null: the actor's value."""
    grad_clip: PositiveFloat = 1.0
    """Maximum gradient norm; larger gradients are scaled down."""
    cliprange_value: NonNegativeFloat = 0.5
    """Clip range of the value loss, around the values at the start of the step."""
    loss_agg_mode: Aggregation = "token-mean"
    """How token losses are aggregated to one number."""
    param_offload: bool = False
    """Keep the critic's weights in CPU memory except during updates and the computation of values; no effect on a
    CPU."""
    optimizer_offload: bool = False
    """Keep the optimizer state in CPU memory except during an update; no effect on a CPU."""
    fsdp_size: PositiveInt | None = None
    """Number of processes that shard one copy of the critic's weights, like `actor.fsdp_size`. null: all processes
    shard one copy."""
