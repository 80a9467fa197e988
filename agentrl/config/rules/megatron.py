"""Rules for Megatron's parallel layouts. For rules that need facts about the model, see `model_layout`."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from agentrl.capabilities import backend_spec, can
from agentrl.config.megatron import MegatronConfig
from agentrl.config.rules.unused import given, unused, wrong
from agentrl.config.run import RunConfig
from agentrl.errors import Kind, Problem

SECTION = "actor.megatron"
_TENSOR, _PIPELINE = "tensor_model_parallel_size", "pipeline_model_parallel_size"
_CONTEXT, _EXPERT = "context_parallel_size", "expert_model_parallel_size"
_EXPERT_TENSOR = "expert_tensor_parallel_size"
_ENDS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
BALANCING = ("moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_router_bias_update_rate")
_PREDICTION = "mtp_loss_scaling_factor"
_CHECKPOINTING = "model.enable_gradient_checkpointing"


def has_layouts(config: RunConfig) -> bool:
    """Whether the backend reads `actor.megatron`."""
    return can(backend_spec(config.actor.backend), "megatron")


def wrong_in_layout(config: RunConfig) -> Iterator[Problem]:
    """Yield a problem per layout that no model can use, and per option of `actor.megatron` without effect."""
    if not has_layouts(config):
        return
    layout = config.actor.megatron
    yield from _not_read(config)
    yield from _wrong_sizes(layout, config.trainer.num_processes)
    yield from _wrong_experts(layout)
    yield from _wrong_stages(layout)
    yield from _wrong_overlap(layout, config.trainer.num_processes)
    yield from _wrong_recomputation(config)
    yield from _wrong_prefixes(config)
    yield from _wrong_prediction(config)
    yield from _wrong_libraries(config)


def _not_read(config: RunConfig) -> Iterator[Problem]:
    backend, layout = config.actor.backend, config.actor.megatron
    for name in sorted(backend_spec(backend).without):
        if given(layout, name):
            text = f"is not supported by `actor.backend={backend}`: remove it"
            yield wrong(f"{SECTION}.{name}", text, Kind.NOT_SUPPORTED)


def _wrong_sizes(layout: MegatronConfig, num_processes: int) -> Iterator[Problem]:
    dense = {name: getattr(layout, name) for name in (_TENSOR, _PIPELINE, _CONTEXT)}
    experts = {_EXPERT_TENSOR: layout.expert_tensor_size, _EXPERT: layout.expert_model_parallel_size}
    yield from _indivisible(dense, num_processes)
    if layout.expert_model_parallel_size > 1:
        yield from _indivisible({**experts, _PIPELINE: layout.pipeline_model_parallel_size}, num_processes)
    if layout.tensor_model_parallel_size == 1 and layout.sequence_parallel:
        yield from unused(SECTION, layout, ("sequence_parallel",), f"`{SECTION}.{_TENSOR}` above 1")


def _indivisible(sizes: dict[str, int], num_processes: int) -> Iterator[Problem]:
    """Yield a problem if the product of the sizes does not divide the number of processes."""
    used = {name: size for name, size in sizes.items() if size > 1}
    if not used or num_processes % prod(used.values()) == 0:
        return
    product = " x ".join(f"`{SECTION}.{name}={size}`" for name, size in used.items())
    total = f" = {prod(used.values())}" if len(used) > 1 else ""
    where = "`trainer.nnodes` x `trainer.n_gpus_per_node`"
    text = f"{product}{total} does not divide the number of processes, {num_processes} ({where})"
    yield Problem(f"{SECTION}.{next(iter(used))}", Kind.CONFLICT, text)


def _wrong_experts(layout: MegatronConfig) -> Iterator[Problem]:
    """Yield problems of expert layouts: layouts with wrong gradients in Megatron, and untested layouts."""
    tensor, experts = layout.tensor_model_parallel_size, layout.expert_model_parallel_size
    key, size = f"{SECTION}.{_EXPERT_TENSOR}", layout.expert_tensor_size
    if experts == 1 and size != tensor:
        text = (
            f"must be `{SECTION}.{_TENSOR}`, {tensor}, with `{SECTION}.{_EXPERT}=1`:"
            " Megatron would not sum the gradients of the experts over the tensor-parallel processes"
        )
        yield wrong(key, text, Kind.CONFLICT, value=size)
    elif size not in (1, tensor):
        yield wrong(key, f"must be 1 or `{SECTION}.{_TENSOR}`, {tensor}", Kind.CONFLICT, value=size)
    if experts > 1 and tensor > 1 and not layout.sequence_is_parallel:
        yield no_sequence_parallel(f"`{SECTION}.{_EXPERT}` above 1")


def no_sequence_parallel(what: str) -> Problem:
    """Return the problem that `sequence_parallel=false` gives wrong gradients with `what` and tensor parallelism."""
    text = f"gives wrong gradients with {what} and `{SECTION}.{_TENSOR}` above 1: remove it"
    return wrong(f"{SECTION}.sequence_parallel", text, Kind.CONFLICT, value="false")


def _wrong_stages(layout: MegatronConfig) -> Iterator[Problem]:
    chunks = "virtual_pipeline_model_parallel_size"
    if layout.pipeline_model_parallel_size == 1:
        named = (chunks, *_ENDS) if layout.virtual_stages else _ENDS
        yield from unused(SECTION, layout, named, f"`{SECTION}.{_PIPELINE}` above 1")
        return
    for name in _ENDS:
        if (number := getattr(layout, name) or 0) % layout.num_layer_chunks:
            text = f"must be a multiple of `{SECTION}.{chunks}`, {layout.num_layer_chunks}"
            yield wrong(f"{SECTION}.{name}", text, Kind.CONFLICT, value=number)
    if layout.moe_token_dispatcher_type == "allgather":
        text = f"does not work with `{SECTION}.{_PIPELINE}` above 1, where micro-batches have different lengths"
        yield wrong(f"{SECTION}.moe_token_dispatcher_type", text, Kind.NOT_SUPPORTED, value="allgather")


def _wrong_overlap(layout: MegatronConfig, num_processes: int) -> Iterator[Problem]:
    stages = layout.pipeline_model_parallel_size
    dense = layout.tensor_model_parallel_size * stages
    experts = layout.expert_tensor_size * layout.expert_model_parallel_size * stages
    if num_processes <= min(dense, experts):  # no parameter is on two processes
        need = "data-parallel or context-parallel processes, which sum gradients"
        yield from unused(SECTION, layout, ("overlap_grad_reduce",), need)
    if layout.overlap_grad_reduce and layout.num_layer_chunks > 1:
        text = f"does not work with `{SECTION}.virtual_pipeline_model_parallel_size` above 1: remove one of the two"
        yield wrong(f"{SECTION}.overlap_grad_reduce", text, Kind.NOT_SUPPORTED, value="true")
    needed = ("overlap_grad_reduce", "use_distributed_optimizer")
    if missing := [name for name in needed if not getattr(layout, name)]:
        need = " and ".join(f"`{SECTION}.{name}=true`" for name in missing)
        yield from unused(SECTION, layout, ("overlap_param_gather",), need)


def _wrong_recomputation(config: RunConfig) -> Iterator[Problem]:
    layout, everything = config.actor.megatron, config.model.enable_gradient_checkpointing
    if layout.recompute_granularity == "selective":
        yield from unused(SECTION, layout, ("recompute_method", "recompute_num_layers"), _granularity("full"))
        if everything:
            text = f"recomputes complete layers, but {_granularity('selective')}: remove one of the two"
            yield wrong(_CHECKPOINTING, text, Kind.CONFLICT, value="true")
        return
    yield from unused(SECTION, layout, ("recompute_modules",), _granularity("selective"))
    if layout.recompute_granularity is None and not everything:
        yield from unused(SECTION, layout, ("recompute_method", "recompute_num_layers"), _granularity("full"))


def _granularity(value: str) -> str:
    return f"`{SECTION}.recompute_granularity={value}`"


def _wrong_prefixes(config: RunConfig) -> Iterator[Problem]:
    if not (config.actor.share_prefixes and can(backend_spec(config.actor.backend), "share_prefixes")):
        return
    for name in (_CONTEXT, _PIPELINE):
        if getattr(config.actor.megatron, name) > 1:
            text = f"does not work with `{SECTION}.{name}` above 1: set `actor.share_prefixes=false`"
            yield wrong("actor.share_prefixes", text, Kind.CONFLICT, value="true")
            return


def _wrong_prediction(config: RunConfig) -> Iterator[Problem]:
    """Yield a problem per option that does not work with the training of layers for multi-token prediction."""
    layout, key = config.actor.megatron, f"{SECTION}.{_PREDICTION}"
    if not layout.mtp_loss_scaling_factor:
        return
    if config.algorithm.preset.family == "reward":
        yield from unused(SECTION, layout, (_PREDICTION,), "a policy: reward models do not have these layers")
        return
    if config.actor.share_prefixes and can(backend_spec(config.actor.backend), "share_prefixes"):
        text = f"does not work with `{key}`: a shared token has several next tokens; set `actor.share_prefixes=false`"
        yield wrong("actor.share_prefixes", text, Kind.CONFLICT, value="true")
    if config.model.lora_rank or config.model.lora_adapter_path:
        text = "trains layers of the model, but LoRA trains only an adapter: remove one of the two"
        yield wrong(key, text, Kind.CONFLICT)
    for name in BALANCING:
        if given(layout, name):
            text = f"does not work with `{key}`, whose layers have routers of their own: remove one of the two"
            yield wrong(f"{SECTION}.{name}", text, Kind.NOT_SUPPORTED)


def _wrong_libraries(config: RunConfig) -> Iterator[Problem]:
    layout = config.actor.megatron
    if layout.transformer_engine and config.actor.device == "cpu":
        text = "needs a GPU: remove `actor.device=cpu`"
        yield wrong(f"{SECTION}.transformer_engine", text, Kind.CONFLICT, value="true")
