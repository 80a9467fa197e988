"""Training layouts and servers that are possible on a given number of devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from agentrl.config.megatron import MegatronConfig
from agentrl.plan.layout import Kind, Layout, Servers
from agentrl.plan.shapes import Shape

_SIZES = (1, 2, 4, 8, 16, 32, 64)
_CONTEXTS = (1, 2, 4, 8)
_PARTS = (2, 4, 8)
_DEFAULT = MegatronConfig()


def layouts_for(
    shape: Shape, devices: int, per_node: int, kind: Kind, base: MegatronConfig = _DEFAULT
) -> Iterator[Layout]:
    """Yield the layouts of `devices` devices; tensor parallelism stays inside a node.

    Args:
        base: values of the Megatron keys that the search does not vary.
    """
    if kind == "megatron":
        for sizes in product(_SIZES, _SIZES, _CONTEXTS, _SIZES):
            if possible(shape, devices, per_node, *sizes):
                values = base.model_copy(update=_sizes(shape, *sizes))
                yield Layout(kind="megatron", devices=devices, megatron=values)
    elif devices == 1:
        yield Layout(kind="torch")
    elif kind == "fsdp":
        for context in _CONTEXTS:
            if devices % context == 0 and shape.attention.heads % context == 0:
                yield Layout(kind="fsdp", devices=devices, fsdp_size=devices, ulysses=context)


def _sizes(shape: Shape, tensor: int, pipeline: int, context: int, expert: int) -> dict[str, int | None]:
    return {
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": pipeline,
        "context_parallel_size": context,
        "expert_model_parallel_size": expert,
        "expert_tensor_parallel_size": (1 if expert > 1 else tensor) if shape.experts else None,
        "num_layers_in_first_pipeline_stage": None,
        "num_layers_in_last_pipeline_stage": last_stage(shape.num_layers, pipeline),
        "virtual_pipeline_model_parallel_size": None,
    }


def possible(shape: Shape, devices: int, per_node: int, tensor: int, pipeline: int, context: int, expert: int) -> bool:
    """Whether these sizes divide the model and the devices."""
    of = shape.attention
    if tensor > per_node or of.heads % tensor or (not of.is_latent and of.kv_heads % tensor):
        return False
    if devices % (tensor * pipeline * context) or (last_stage(shape.num_layers, pipeline) or 1) < 1:
        return False
    if not shape.experts:
        return expert == 1
    return shape.experts % expert == 0 and devices % (expert * pipeline) == 0


def last_stage(num_layers: int, pipeline: int) -> int | None:
    """Number of layers of the last stage; None if all stages have the same number.

    Each other stage has the mean number of layers, rounded up.
    """
    return num_layers - -(-num_layers // pipeline) * (pipeline - 1) if num_layers % pipeline else None


def servers_for(shape: Shape, devices: int, most: int, *, colocate: bool, number: int = 0) -> Iterator[Servers]:
    """Yield the possible SGLang servers on `devices` devices: `number` servers (0: any) with up to `most` devices each.

    If a server has more devices than the model has key-value heads, also yield servers with data-parallel attention. In
    these servers, no device holds the KV cache of all rollouts. Latent attention counts as one key-value head.
    """
    heads = 1 if shape.attention.is_latent else shape.attention.kv_heads
    for tensor in _SIZES:
        if tensor > most or devices % tensor or number not in (0, devices // tensor) or shape.attention.heads % tensor:
            continue
        servers = Servers(embedded=False, replicas=devices // tensor, tensor=tensor, colocate=colocate)
        yield servers
        yield from (replace(servers, data=data) for data in _PARTS if heads < tensor >= data)
