"""verl's `actor_rollout_ref.actor.*` and `actor_rollout_ref.ref.*`."""

from __future__ import annotations

from agentrl.compat.verl.keys.data import expand_home, lora_section
from agentrl.compat.verl.keys.names import read_loss
from agentrl.compat.verl.keys.optim import optim_rows
from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped, Row, one_of
from agentrl.errors import ConfigError

_ACTOR = "actor_rollout_ref.actor"
_REF = "actor_rollout_ref.ref"
_SPEED = "a speed or memory option that only verl has"
_SHARDS = "an FSDP option that only verl has"
_OFFLOAD = "offload to CPU memory; no effect on a CPU"
_BATCHES = "the reference uses the actor's micro-batches; their size does not change the results"
_WITHOUT_DYNAMIC = "samples per micro-batch, if use_dynamic_bsz is off"
_PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}

read_precision = one_of("model.dtype", _PRECISIONS)


def read_shards(size: object) -> int | None:
    """Read `fsdp_size`: verl's -1 (all) becomes None."""
    return None if int(str(size)) < 0 else int(str(size))


def _read_replay(mode: object) -> dict[str, bool]:
    """Read `router_replay.mode`.

    Raises:
        ConfigError: there is no such mode.
    """
    keys = {"R2": "actor.routed_experts", "R3": "rollout.routed_experts"}
    if str(mode) not in (*keys, "disabled"):
        raise ConfigError.keyless(f"'{mode}' is not a mode: use R2, R3 or disabled")
    return {keys[str(mode)]: True} if str(mode) in keys else {}


ACTOR: tuple[Row, ...] = (
    Mapped(
        f"{_ACTOR}.strategy",
        "actor.backend",
        read=one_of("actor.backend", {"fsdp": "torch", "fsdp2": "torch"}),
        note="fsdp and fsdp2 become torch",
    ),
    Mapped(f"{_ACTOR}.ppo_mini_batch_size", "actor.ppo_mini_batch_size", 256, note="prompts per update, as in verl"),
    Mapped(
        f"{_ACTOR}.use_dynamic_bsz",
        "actor.use_dynamic_bsz",
        note="default: false (as in verl) if ppo_micro_batch_size_per_gpu is set, else true; does not change results",
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
        note="as in verl, used only if clip_ratio_low or clip_ratio_high is null",
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
    Mapped(f"{_ACTOR}.fsdp_config.fsdp_size", "actor.fsdp_size", read=read_shards, note="-1: all processes"),
    Mapped(f"{_ACTOR}.fsdp_config.reshard_after_forward", "actor.reshard_after_forward", True),
    Mapped(f"{_ACTOR}.fsdp_config.param_offload", "actor.param_offload", False, note=_OFFLOAD),
    Mapped(f"{_ACTOR}.fsdp_config.optimizer_offload", "actor.optimizer_offload", False, note=_OFFLOAD),
    *lora_section(f"{_ACTOR}.lora"),
    *lora_section("actor.lora"),
    Mapped(
        f"{_ACTOR}.policy_loss.loss_mode",
        "actor.policy_loss.loss_mode",
        "vanilla",
        read_loss,
        "geo_mean becomes gmpo; options that the loss does not read are dropped; file.py:function is your own loss",
    ),
    *(
        Mapped(f"{_ACTOR}.policy_loss.{key}", f"actor.policy_loss.{key}", default)
        for key, default in (
            *(("clip_cov_ratio", 0.0002), ("clip_cov_lb", 1.0), ("clip_cov_ub", 5.0)),
            *(("kl_cov_ratio", 0.0002), ("ppo_kl_coef", 0.1)),
        )
    ),
    Mapped(
        f"{_ACTOR}.policy_loss.dro_beta", "actor.policy_loss.options", read=lambda beta: {"dro_beta": float(str(beta))}
    ),
    Mapped(f"{_ACTOR}.tau_pos", "actor.tau_pos", 1.0),
    Mapped(f"{_ACTOR}.tau_neg", "actor.tau_neg", 1.05),
    Fixed(f"{_ACTOR}.loss_scale_factor", (None,), "seq-mean-token-sum-norm divides by data.max_response_length"),
    Mapped(
        f"{_ACTOR}.router_replay.mode",
        ("actor.routed_experts", "rollout.routed_experts"),
        read=_read_replay,
        note="R2 sets actor.routed_experts to true, R3 sets rollout.routed_experts to true; disabled sets neither",
    ),
    Fixed(f"{_REF}.router_replay.mode", (None, "disabled"), "remove it"),
    *(Hint(f"{part}.router_replay.*", "no effect without its mode") for part in (_ACTOR, _REF)),
    *(Fixed(f"{part}.load_weight", (True,), "remove it: weights are always loaded") for part in (_ACTOR, _REF)),
    Fixed(f"{_ACTOR}.qat.enable", (None, False), "remove it"),
    Hint(f"{_ACTOR}.qat.*", "no effect without qat.enable"),
    Mapped(f"{_ACTOR}.ulysses_sequence_parallel_size", "actor.ulysses_sequence_parallel_size", 1),
    Fixed(f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size", (1,), f"use {_ACTOR}.ulysses_sequence_parallel_size"),
    Fixed(f"{_ACTOR}.fsdp_config.mixed_precision.*", (None,), f"use {_ACTOR}.fsdp_config.dtype"),
    Hint(f"{_ACTOR}.fsdp_config.*", _SHARDS),
    *(
        Hint(f"{_ACTOR}.{key}", "trainer.seed decides which groups form a mini-batch")
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
    Hint(f"{_ACTOR}.calculate_entropy", "the entropy is always logged"),
    Hint(f"{_ACTOR}.calculate_sum_pi_squared", "this value is not logged"),
    Mapped(f"{_ACTOR}.checkpoint.async_save", "trainer.async_save", False, note="also applies to the critic"),
    Hint(f"{_ACTOR}.checkpoint.*", "a checkpoint always holds weights, optimizer state and data position"),
    Hint(f"{_ACTOR}.freeze_vision_tower", "only text is trained"),
    Hint(f"{_ACTOR}.rollout_n", "use actor_rollout_ref.rollout.n"),
    Hint(f"{_ACTOR}.policy_loss.rollout_correction.*", "use algorithm.rollout_correction"),
)

OPTIM: tuple[Row, ...] = optim_rows(f"{_ACTOR}.optim", "actor.optim", "actor.grad_clip", 1e-6)

REF: tuple[Row, ...] = (
    Mapped(f"{_REF}.model.path", "ref.path", read=expand_home),
    Mapped(f"{_REF}.ulysses_sequence_parallel_size", "ref.ulysses_sequence_parallel_size"),
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
    Hint(f"{_REF}.fsdp_config.*", "the actor's value is used, or only verl has the option"),
    Hint(f"{_REF}.strategy", "the reference uses the actor's strategy"),
    Hint(f"{_REF}.rollout_n", "use actor_rollout_ref.rollout.n"),
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
