"""verl's Megatron options of the policy, the reference and the critic."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.compat.verl.keys.critic import uses_critic
from agentrl.compat.verl.keys.draft import Draft
from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped, Row, checked_only, one_of, truth
from agentrl.errors import ConfigError, Kind, Problem

_ACTOR, _REF, _CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"
_OURS, _VERLS = "actor.megatron", f"{_ACTOR}.megatron"
_MODEL = f"{_VERLS}.override_transformer_config"
_DDP = f"{_VERLS}.override_ddp_config"
_AUX_LOSS, _BALANCING = "moe_aux_loss_coeff", f"{_MODEL}.moe_router_load_balancing_type"
_NAME = "megatron"
_MTP, _FACTOR = "actor_rollout_ref.model.mtp", "mtp_loss_scaling_factor"
_VERLS_FACTOR = 0.1
"""verl's default of `mtp_loss_scaling_factor`."""

_SIZES = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": None,
}
"""Name of a parallel size -> its default, which is the same in verl and agentrl."""
_WITHOUT_PREFIXES = ("pipeline_model_parallel_size", "context_parallel_size")
"""If one of these sizes is above 1, `actor.share_prefixes` is false by default. verl never shares prefixes."""
_OVERRIDES = (
    *("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
    *("moe_router_dtype", "moe_z_loss_coeff", "moe_router_bias_update_rate"),
)
_KERNELS = (
    *("attention_backend", "apply_rope_fusion", "bias_activation_fusion", "bias_dropout_fusion"),
    *("gradient_accumulation_fusion", "masked_softmax_fusion", "persist_layer_norm", "deallocate_pipeline_outputs"),
    *("moe_grouped_gemm", "moe_permute_fusion", "moe_enable_deepep", "moe_shared_expert_overlap"),
    "variable_seq_lengths",
)
_CPU_ADAM = (
    *("optimizer_cpu_offload", "optimizer_offload_fraction"),
    *("overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer"),
)
_CHOSEN_KERNELS = "agentrl chooses the kernels; the choice changes results only by rounding"
_LAYOUT_OF_THE_ACTOR = "the policy's layout is used for all models; other sizes are refused"
_SAVED = f"weights are read from the Hugging Face folder; set {_VERLS}.use_dist_checkpointing=False"


def _dispatcher(value: object) -> object:
    """Read a token dispatcher; flex (DeepEP) becomes alltoall, which gives the same results."""
    return "alltoall" if value == "flex" else one_of(f"{_OURS}.moe_token_dispatcher_type")(value)


_DEFERRED = {
    f"{_VERLS}.dtype": "model.dtype",
    f"{_VERLS}.param_offload": "actor.param_offload",
    f"{_VERLS}.optimizer_offload": "actor.optimizer_offload",
    f"{_REF}.megatron.param_offload": "ref.param_offload",
    f"{_CRITIC}.megatron.param_offload": "critic.param_offload",
    f"{_CRITIC}.megatron.optimizer_offload": "critic.optimizer_offload",
}
"""verl's Megatron key -> agentrl's key. With another strategy, verl's FSDP keys are read instead of these keys."""


def _offload(section: str) -> Iterator[Row]:
    for key, target in _DEFERRED.items():
        if key.startswith(f"{section}.") and key.endswith("_offload"):
            yield Mapped(key, (target,), read=checked_only(), note="offload to CPU memory; no effect on a CPU")
    yield Hint(f"{section}.megatron.grad_offload", "gradients are offloaded with the weights (param_offload)")


def _common(section: str) -> Iterator[Row]:
    """Yield rows of options that exist for policy, reference and critic, and that do not change the results."""
    prefix = f"{section}.megatron"
    yield Fixed(f"{prefix}.use_dist_checkpointing", (None, False), f"set it to False: {_SAVED.partition(';')[0]}")
    yield from (Hint(f"{prefix}.dist_checkpointing_{key}", _SAVED) for key in ("path", "prefix"))
    yield Hint(f"{prefix}.seed", "use trainer.seed")
    yield Hint(f"{prefix}.vanilla_mbridge", "use_mbridge decides between megatron-bridge and agentrl's own mapping")
    if section == _REF:
        yield Hint(f"{prefix}.optimizer_offload", "a reference has no optimizer")
    yield Hint(f"{prefix}.forward_only", "the reference is not trained, other models are")
    yield Hint(f"{prefix}.use_remove_padding", "samples are always packed")
    yield Fixed(f"{prefix}.override_mcore_model_config.*", (None,), "change config.json of the model")


MEGATRON_ACTOR: tuple[Row, ...] = (
    *(Mapped(f"{_VERLS}.{key}", f"{_OURS}.{key}") for key in _SIZES),
    Mapped(
        f"{_VERLS}.sequence_parallel",
        f"{_OURS}.sequence_parallel",
        read=lambda value: None if truth(value) else value,
        note="true becomes null, which means: on with tensor parallelism, as in verl",
    ),
    Mapped(f"{_VERLS}.use_distributed_optimizer", f"{_OURS}.use_distributed_optimizer"),
    Mapped(
        f"{_VERLS}.use_mbridge",
        f"{_OURS}.use_mbridge",
        read=lambda value: True if truth(value) else None,
        note="false becomes null, which means: megatron-bridge only for models that need it",
    ),
    Mapped(
        f"{_VERLS}.dtype",
        ("model.dtype",),
        read=checked_only(one_of("model.dtype")),
        note="trained weights; default with strategy=megatron: bfloat16. The optimizer keeps float32 copies",
    ),
    *_offload(_ACTOR),
    *(Mapped(f"{_MODEL}.{key}", f"{_OURS}.{key}") for key in _OVERRIDES),
    Mapped(
        f"{_MODEL}.{_AUX_LOSS}",
        f"{_OURS}.{_AUX_LOSS}",
        note="as in verl, no effect without moe_router_load_balancing_type=aux_loss",
    ),
    Fixed(_BALANCING, (None, "none", "aux_loss"), f"use {_OURS}.{_AUX_LOSS}"),
    Mapped(
        f"{_MODEL}.moe_token_dispatcher_type",
        f"{_OURS}.moe_token_dispatcher_type",
        read=_dispatcher,
        note="flex becomes alltoall, which gives the same results",
    ),
    *(Hint(f"{_MODEL}.{key}", _CHOSEN_KERNELS) for key in _KERNELS),
    *(
        Fixed(f"{_MODEL}.account_for_{part}_in_pipeline_split", (None, False), f"use {_OURS}.num_layers_in_{end}")
        for part, end in (("embedding", "first_pipeline_stage"), ("loss", "last_pipeline_stage"))
    ),
    Fixed(f"{_MODEL}.*", (None,), f"use a key of {_OURS} (`agentrl config`)"),
    Mapped(f"{_DDP}.overlap_grad_reduce", f"{_OURS}.overlap_grad_reduce"),
    Hint(f"{_DDP}.overlap_param_gather", "not supported yet; it changes only the speed"),
    Fixed(f"{_DDP}.*", (None,), f"use {_OURS}.overlap_grad_reduce"),
    *_common(_ACTOR),
    *(
        Mapped(f"{_MTP}.{key}", (f"{_OURS}.{_FACTOR}",), read=checked_only(truth), note=note)
        for key, note in (
            ("enable", "no effect without enable_train: checkpoints then contain the unchanged MTP layers"),
            ("enable_train", "needs enable, strategy=megatron and detach_encoder"),
            ("detach_encoder", "must be true with enable_train: in agentrl, the MTP loss never changes the policy"),
        )
    ),
    Mapped(
        f"{_MTP}.{_FACTOR}",
        (f"{_OURS}.{_FACTOR}",),
        read=checked_only(float),
        note=f"used with enable and enable_train; verl's default is {_VERLS_FACTOR}",
    ),
    Fixed(f"{_MTP}.enable_rollout", (None, False), "remove it: engines do not get these layers"),
    Hint(f"{_MTP}.*", "agentrl starts no engine with speculative decoding"),
    *(
        Fixed(
            f"{section}.optim.override_optimizer_config.{key}",
            (None, False, 0),
            f"use {section}.megatron.optimizer_offload=True",
        )
        for section in (_ACTOR, _CRITIC)
        for key in _CPU_ADAM
    ),
)


def _follower(section: str) -> tuple[Row, ...]:
    """Rows of the reference or the critic, which use the policy's layout."""
    prefix = f"{section}.megatron"
    options = ("sequence_parallel", "use_distributed_optimizer", "use_mbridge", "dtype")
    nested = ("override_transformer_config", "override_ddp_config")
    return (
        *(Hint(f"{prefix}.{key}", _LAYOUT_OF_THE_ACTOR) for key in _SIZES),
        *_offload(section),
        *(Hint(f"{prefix}.{key}", "the policy's value is used") for key in options),
        *(Hint(f"{prefix}.{key}.*", "the policy's value is used") for key in nested),
        *_common(section),
    )


MEGATRON_REF = _follower(_REF)
MEGATRON_CRITIC = _follower(_CRITIC)


_MAPPED = frozenset(row.key for row in (*MEGATRON_ACTOR, *MEGATRON_REF, *MEGATRON_CRITIC) if isinstance(row, Mapped))


def adjust_megatron(draft: Draft) -> None:
    """If the strategy is megatron, check the layouts and drop unread options; otherwise, drop Megatron's options.

    Raises:
        ConfigError: reference, critic and policy have different layouts or strategies, or the options for the training
            of the MTP layers are not supported.
    """
    is_megatron = draft.values.get("actor.backend") == _NAME
    layouts = _other_layouts(draft) if is_megatron else ()
    if problems := [*_strategies(draft, is_megatron), *layouts, *_untrainable(draft, is_megatron)]:
        raise ConfigError(*problems)
    if not is_megatron:
        _leave_out_megatron(draft)
        return
    _leave_out_fsdp(draft)
    _set_deferred(draft)
    _leave_out_recomputation(draft)
    _set_prediction(draft)
    if any(draft.number(f"{_OURS}.{name}") > 1 for name in _WITHOUT_PREFIXES):
        draft.values.setdefault("actor.share_prefixes", False)
    if draft.given.get(_BALANCING) != "aux_loss":
        draft.leave_out([f"{_OURS}.{_AUX_LOSS}"], f"{_BALANCING} is not aux_loss, as in verl")


def _strategies(draft: Draft, is_megatron: bool) -> Iterator[Problem]:
    given = draft.given.get("critic.strategy")
    if given is not None and uses_critic(draft) and (given == _NAME) != is_megatron:
        text = f"`critic.strategy={given}` is not supported: the critic uses the actor's strategy, {_ACTOR}.strategy"
        yield Problem("critic.strategy", Kind.CONFLICT, text)


def _other_layouts(draft: Draft) -> Iterator[Problem]:
    for section in (_REF, *((_CRITIC,) if uses_critic(draft) else ())):
        for name, default in _SIZES.items():
            key, used = f"{section}.megatron.{name}", draft.values.get(f"{_OURS}.{name}", default)
            if key in draft.given and str(draft.given[key]) != str(used):
                text = f"`{key}={draft.given[key]}` is not supported: it must equal `{_OURS}.{name}`, which is {used}"
                yield Problem(key, Kind.NOT_SUPPORTED, text)


def _trains_prediction(draft: Draft) -> bool:
    """Whether verl trains the layers for multi-token prediction."""
    return all(truth(draft.given.get(f"{_MTP}.{key}")) for key in ("enable", "enable_train"))


def _untrainable(draft: Draft, is_megatron: bool) -> Iterator[Problem]:
    if not _trains_prediction(draft):
        return
    key, needed = f"{_MTP}.enable_train", {f"{_ACTOR}.strategy=megatron": is_megatron}
    needed[f"{_MTP}.detach_encoder=True"] = bool(truth(draft.given.get(f"{_MTP}.detach_encoder")))
    if missing := [name for name, is_given in needed.items() if not is_given]:
        text = f"`{key}=True` needs {' and '.join(f'`{name}`' for name in missing)}"
        yield Problem(key, Kind.NOT_SUPPORTED, text)


def _set_prediction(draft: Draft) -> None:
    if not _trains_prediction(draft):
        return
    source, target = f"{_MTP}.{_FACTOR}", f"{_OURS}.{_FACTOR}"
    if target not in draft.given:
        draft.values[target], draft.source_keys[target] = draft.given.get(source, _VERLS_FACTOR), source
    draft.values.setdefault("actor.share_prefixes", False)


def _leave_out_megatron(draft: Draft) -> None:
    for target in [target for target, source in draft.source_keys.items() if source in _MAPPED]:
        draft.values.pop(target, None)
    read = [key for key in draft.given if key in _MAPPED and (uses_critic(draft) or not key.startswith(_CRITIC))]
    if read:
        draft.idle[f"{_ACTOR}.strategy is not megatron"] = read


def _leave_out_fsdp(draft: Draft) -> None:
    sources = draft.source_keys.items()
    unread = [target for target, source in sources if ".fsdp_config." in source or source.startswith("critic.fsdp.")]
    draft.leave_out(unread, f"{_ACTOR}.strategy is megatron")


def _set_deferred(draft: Draft) -> None:
    """Set the agentrl keys of `_DEFERRED`. As in verl with Megatron, bfloat16 weights are trained by default."""
    for key, target in _DEFERRED.items():
        unread = key.startswith(_CRITIC) and not uses_critic(draft)
        if draft.given.get(key) is not None and target not in draft.given and not unread:
            draft.values[target], draft.source_keys[target] = draft.given[key], key
    draft.values.setdefault("model.dtype", "bfloat16")


def _leave_out_recomputation(draft: Draft) -> None:
    """Drop recomputation options that have no effect with the chosen granularity. verl's YAML files contain them."""
    granularity, everything = draft.values.get(f"{_OURS}.recompute_granularity"), "model.enable_gradient_checkpointing"
    unread = {
        "full": ("recompute_modules",),
        "selective": ("recompute_method", "recompute_num_layers"),
    }.get(str(granularity), ("recompute_modules", "recompute_method", "recompute_num_layers"))
    draft.leave_out((f"{_OURS}.{key}" for key in unread), f"recompute_granularity={granularity} does not read it")
    if granularity is not None:
        draft.leave_out([everything], "recompute_granularity decides")
    elif draft.source_keys.get(everything) not in draft.given:
        draft.values.pop(everything, None)
