"""verl's `actor_rollout_ref.actor.*` and `actor_rollout_ref.ref.*`."""

from __future__ import annotations

from agentrl.compat.verl_keys.data import expand_home, lora_section
from agentrl.compat.verl_keys.rows import Fixed, Hint, Mapped, Row, one_of

_ACTOR = "actor_rollout_ref.actor"
_OPTIM = f"{_ACTOR}.optim"
_REF = "actor_rollout_ref.ref"
_SPEED = "a speed or memory switch of verl's own"
_SHARDS = "one process holds the whole policy"
_OFFLOAD = "to the CPU's memory; nothing to do on a CPU"
_BATCHES = "the reference scores in the actor's micro-batches; its sums do not depend on the cut"
_WITHOUT_DYNAMIC = "samples a micro-batch, without use_dynamic_bsz"
_PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}

read_precision = one_of("model.dtype", _PRECISIONS)


ACTOR: tuple[Row, ...] = (
    Mapped(
        f"{_ACTOR}.strategy",
        "actor.backend",
        read=one_of("actor.backend", {"fsdp": "torch", "fsdp2": "torch"}),
        note="fsdp and fsdp2 become torch: one process, no shards",
    ),
    Mapped(f"{_ACTOR}.ppo_mini_batch_size", "actor.ppo_mini_batch_size", 256, note="prompts an update, as in verl"),
    Mapped(
        f"{_ACTOR}.use_dynamic_bsz",
        "actor.use_dynamic_bsz",
        note="by default false where ppo_micro_batch_size_per_gpu is given, as in verl, else true; sums are the same",
    ),
    Mapped(f"{_ACTOR}.ppo_micro_batch_size_per_gpu", "actor.ppo_micro_batch_size_per_gpu", note=_WITHOUT_DYNAMIC),
    Mapped(f"{_ACTOR}.ppo_micro_batch_size", "actor.ppo_micro_batch_size_per_gpu", note="older name"),
    Mapped(f"{_ACTOR}.ppo_max_token_len_per_gpu", "actor.ppo_max_token_len_per_gpu", 16384),
    Mapped(f"{_ACTOR}.ppo_epochs", "actor.ppo_epochs", 1),
    Mapped(f"{_ACTOR}.grad_clip", "actor.grad_clip", 1.0),
    Mapped(
        f"{_ACTOR}.clip_ratio",
        "actor.clip_ratio",
        0.2,
        note="as in verl, without effect while clip_ratio_low and clip_ratio_high have their default; null frees them",
    ),
    Mapped(f"{_ACTOR}.clip_ratio_low", "actor.clip_ratio_low", 0.2),
    Mapped(f"{_ACTOR}.clip_ratio_high", "actor.clip_ratio_high", 0.2),
    Mapped(f"{_ACTOR}.clip_ratio_c", "actor.clip_ratio_c", 3.0),
    Mapped(f"{_ACTOR}.loss_agg_mode", "actor.loss_agg_mode", "token-mean", one_of("actor.loss_agg_mode")),
    Mapped(f"{_ACTOR}.use_kl_loss", "actor.use_kl_loss", False),
    Mapped(f"{_ACTOR}.kl_loss_coef", "actor.kl_loss_coef", 0.001),
    Mapped(f"{_ACTOR}.kl_loss_type", "actor.kl_loss_type", "low_var_kl", one_of("actor.kl_loss_type")),
    Mapped(f"{_ACTOR}.entropy_coeff", "actor.entropy_coeff", 0.0),
    Mapped(f"{_ACTOR}.fsdp_config.model_dtype", "model.dtype", "fp32", read_precision, "trained weights"),
    Mapped(
        f"{_ACTOR}.fsdp_config.dtype", "actor.autocast", "bfloat16", read_precision, "activations; float32: no autocast"
    ),
    Mapped(f"{_ACTOR}.fsdp_config.param_offload", "actor.param_offload", False, note=_OFFLOAD),
    Mapped(f"{_ACTOR}.fsdp_config.optimizer_offload", "actor.optimizer_offload", False, note=_OFFLOAD),
    *lora_section(f"{_ACTOR}.lora"),
    *lora_section("actor.lora"),
    Fixed(f"{_ACTOR}.policy_loss.loss_mode", ("vanilla",), "the clipped ratio is the only loss in this version"),
    Fixed(f"{_ACTOR}.loss_scale_factor", (None,), "seq-mean-token-sum-norm divides by data.max_response_length"),
    *(
        Fixed(f"{part}.router_replay.mode", (None, "disabled"), "leave it out: not in this version")
        for part in (_ACTOR, _REF)
    ),
    *(Hint(f"{part}.router_replay.*", "no effect without its mode") for part in (_ACTOR, _REF)),
    *(Fixed(f"{part}.load_weight", (True,), "leave it out: weights are always loaded") for part in (_ACTOR, _REF)),
    Fixed(f"{_ACTOR}.qat.enable", (None, False), "leave it out: not in this version"),
    Hint(f"{_ACTOR}.qat.*", "no effect without qat.enable"),
    *(
        Fixed(f"{_ACTOR}.{key}", (1,), "set it to 1: one process", _SHARDS)
        for key in ("ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size")
    ),
    Fixed(f"{_ACTOR}.fsdp_config.mixed_precision.*", (None,), f"say {_ACTOR}.fsdp_config.dtype"),
    Fixed(f"{_ACTOR}.fsdp_config.fsdp_size", (-1, 1), "set it to -1: one process", _SHARDS),
    *(Hint(f"{_ACTOR}.{key}", _SHARDS) for key in ("fsdp_config.*", "megatron.*")),
    *(
        Hint(f"{_ACTOR}.{key}", "groups are dealt into mini-batches by trainer.seed")
        for key in ("shuffle", "data_loader_seed")
    ),
    *(
        Hint(f"{_ACTOR}.{key}", _SPEED)
        for key in (
            "use_torch_compile",
            "use_remove_padding",
            "use_fused_kernels",
            "use_prefix_grouper",
            "sum_pi_squared_checkpointing",
            "entropy_checkpointing",
            "entropy_from_logits_with_chunking",
            "entropy_from_logits_chunk_size",
            "pad_to_length",
            "profiler.*",
        )
    ),
    Hint(f"{_ACTOR}.calculate_entropy", "the entropy is always measured"),
    Hint(f"{_ACTOR}.calculate_sum_pi_squared", "it is not measured here"),
    Hint(f"{_ACTOR}.checkpoint.*", "a checkpoint always holds weights, optimizer and position"),
    Hint(f"{_ACTOR}.freeze_vision_tower", "text models only in this version"),
    Hint(f"{_ACTOR}.rollout_n", "actor_rollout_ref.rollout.n says it"),
    *(Hint(f"{_ACTOR}.{key}", "belongs to another loss_mode") for key in ("policy_loss.*", "tau_pos", "tau_neg")),
)

OPTIM: tuple[Row, ...] = (
    Mapped(f"{_OPTIM}.lr", "actor.optim.lr", 1e-6),
    Mapped(f"{_OPTIM}.betas", "actor.optim.betas", (0.9, 0.999)),
    Mapped(f"{_OPTIM}.weight_decay", "actor.optim.weight_decay", 0.01, note="of matrices; verl decays norms too"),
    Mapped(f"{_OPTIM}.clip_grad", "actor.grad_clip"),
    Mapped(
        f"{_OPTIM}.lr_warmup_steps",
        "actor.optim.lr_warmup_steps",
        read=lambda value: max(0, int(float(value))),
        note="verl counts steps, agentrl updates: multiplied by the updates of a step",
    ),
    Mapped(
        f"{_OPTIM}.lr_scheduler_type",
        "actor.optim.lr_scheduler_type",
        "constant",
        one_of("actor.optim.lr_scheduler_type"),
        "runs down over all updates of the run",
    ),
    Mapped(
        f"{_OPTIM}.warmup_style",
        "actor.optim.lr_scheduler_type",
        read=one_of("actor.optim.lr_scheduler_type"),
        note="older name",
    ),
    Mapped(
        f"{_OPTIM}.lr_decay_style",
        "actor.optim.lr_scheduler_type",
        read=one_of("actor.optim.lr_scheduler_type"),
        note="Megatron's name",
    ),
    Mapped(f"{_OPTIM}.min_lr_ratio", "actor.optim.min_lr_ratio"),
    Fixed(f"{_OPTIM}.min_lr", (None, 0), f"give it as a share of lr: {_OPTIM}.min_lr_ratio"),
    Fixed(f"{_OPTIM}.lr_warmup_init", (None, 0), "leave it out: a warm-up begins at 0"),
    Fixed(f"{_OPTIM}.lr_decay_steps", (None,), "leave it out (the run's own length), or actor.optim.total_updates"),
    Fixed(f"{_OPTIM}.weight_decay_incr_style", (None, "constant"), "leave it out: weight decay stays as it is"),
    *(
        Hint(f"{_OPTIM}.{key}", "belongs to Megatron's WSD schedule, which lr_decay_style would choose")
        for key in ("lr_wsd_decay_style", "lr_wsd_decay_steps")
    ),
    Hint(f"{_OPTIM}.use_checkpoint_opt_param_scheduler", "a run that goes on keeps its schedule"),
    Mapped(
        f"{_OPTIM}.optimizer",
        "actor.optim.name",
        read=lambda v: "adamw" if v == "adam" else one_of("actor.optim.name")(str(v).lower()),
        note="AdamW; Megatron's adam is the same",
    ),
    Fixed(f"{_OPTIM}.optimizer_impl", ("torch.optim",), "leave it out: torch's own AdamW is used"),
    Mapped(
        f"{_OPTIM}.lr_warmup_steps_ratio",
        "actor.optim.lr_warmup_steps_ratio",
        note="of the run's updates, where verl rounds down to whole steps: less than a step longer; "
        "lr_warmup_steps above 0 goes before it, as in verl",
    ),
    Hint(
        f"{_OPTIM}.total_training_steps",
        "schedules run over the run's own length, which verl's trainer sets it to, or over actor.optim.total_updates",
    ),
    Fixed(f"{_OPTIM}.num_cycles", (0.5,), "set it to 0.5: half a cosine"),
    Fixed(f"{_OPTIM}.override_optimizer_config.*", (None,), "use actor.optim.eps, actor.optim.betas"),
    Hint(f"{_OPTIM}.zero_indexed_step", "the first update of a warm-up already moves"),
)

REF: tuple[Row, ...] = (
    Mapped(f"{_REF}.model.path", "ref.path", read=expand_home),
    Fixed(f"{_REF}.ulysses_sequence_parallel_size", (1,), "set it to 1: one process", _SHARDS),
    *(
        Hint(f"{_REF}.{key}", _BATCHES)
        for key in (
            "log_prob_micro_batch_size_per_gpu",
            "log_prob_micro_batch_size",
            "log_prob_use_dynamic_bsz",
            "log_prob_max_token_len_per_gpu",
        )
    ),
    Mapped(f"{_REF}.fsdp_config.param_offload", "ref.param_offload", False, note=_OFFLOAD),
    Hint(f"{_REF}.fsdp_config.*", _SHARDS),
    Hint(f"{_REF}.megatron.*", _SHARDS),
    Hint(f"{_REF}.strategy", "the reference runs as the actor does"),
    Hint(f"{_REF}.rollout_n", "actor_rollout_ref.rollout.n says it"),
    *(
        Hint(f"{_REF}.{key}", _SPEED)
        for key in (
            "use_torch_compile",
            "entropy_checkpointing",
            "entropy_from_logits_with_chunking",
            "entropy_from_logits_chunk_size",
            "pad_to_length",
            "profiler.*",
        )
    ),
)
